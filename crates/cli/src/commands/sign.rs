//! `--sign-by-key`: the key that signs what is published.

use std::path::PathBuf;

use clap::Args;
use tarpon_engine::SigningKey;

use super::options::path;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};

/// Maximum size of a key file in bytes: real ones have a few KiB.
const FILE_BYTES: u64 = 64 << 10;

/// The variable of cosign with the password of its keys.
const PASSWORD: &str = "COSIGN_PASSWORD";

/// Signing of what is published.
#[derive(Debug, Args)]
pub(super) struct Signing {
    /// Sign the published index with this private key (PEM: PKCS#8, SEC 1, or of cosign with $COSIGN_PASSWORD)
    ///
    /// Hosts whose policy names the public key for the image or for the index repository (sigstoreSigned in containers-policy.json) use the
    /// index without --index. The signature is attached as `cosign sign` attaches it.
    #[arg(long, value_name = "FILE", value_parser = path())]
    sign_by_key: Option<PathBuf>,
}

impl Signing {
    /// The key, read before anything is published.
    pub(super) fn key(&self) -> Result<Option<SigningKey>> {
        let Some(file) = &self.sign_by_key else { return Ok(None) };
        let doing = || format!("cannot read the key {}", file.display());
        let size = std::fs::metadata(file).doing(doing)?.len();
        if size > FILE_BYTES {
            return Err(Failure::new(Exit::Failure, format_args!("{}: it has more than {FILE_BYTES} bytes", doing())));
        }
        let pem = std::fs::read(file).doing(doing)?;
        let password = std::env::var_os(PASSWORD);
        let password = password.as_ref().map(|password| password.as_encoded_bytes());
        let key = SigningKey::from_pem(&pem, password);
        key.map(Some).map_err(|error| Failure::new(Exit::Failure, format_args!("{}: {error}", doing())))
    }
}
