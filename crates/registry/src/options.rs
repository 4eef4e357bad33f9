//! How a user wants registries to be spoken to.

use std::path::PathBuf;

use crate::credentials::{CredentialSource, Credentials};

/// Access to registries. The default: credentials as Podman finds them, certificates checked.
#[derive(Debug, Clone)]
pub struct AccessOptions {
    /// `--creds USER[:PASSWORD]`: used instead of any file.
    pub credentials: Option<Credentials>,
    /// `--authfile`: used instead of the usual files.
    pub authfile: Option<PathBuf>,
    /// `--tls-verify`: `false` takes any certificate from the registry, and plain HTTP where it speaks no HTTPS.
    pub tls_verify: bool,
    /// `--cert-dir`: `*.crt` roots, `*.cert` and `*.key` client certificate.
    pub cert_dir: Option<PathBuf>,
}

impl Default for AccessOptions {
    fn default() -> Self {
        Self { credentials: None, authfile: None, tls_verify: true, cert_dir: None }
    }
}

impl AccessOptions {
    /// Where credentials come from.
    pub(crate) fn credential_source(&self) -> CredentialSource {
        CredentialSource::from_environment(self.credentials.clone(), self.authfile.clone())
    }
}
