//! The user's options for access to registries.

use std::path::PathBuf;
use std::sync::Arc;

use crate::credentials::{CredentialLookup, CredentialSource, Credentials};

/// Access to registries. The default: credentials as Podman finds them, certificates checked.
#[derive(Debug, Clone)]
pub struct AccessOptions {
    /// `--creds USER[:PASSWORD]`: used instead of any file.
    pub credentials: Option<Credentials>,
    /// `--authfile`: used instead of the usual files.
    pub authfile: Option<PathBuf>,
    /// Another process looks credentials up, instead of all of these.
    pub lookup: Option<Arc<dyn CredentialLookup>>,
    /// `--tls-verify`: `false` accepts any certificate of the registry, and plain HTTP if it has no HTTPS.
    pub tls_verify: bool,
    /// `--cert-dir`: `*.crt` roots, `*.cert` and `*.key` client certificate.
    pub cert_dir: Option<PathBuf>,
}

impl Default for AccessOptions {
    fn default() -> Self {
        Self { credentials: None, authfile: None, lookup: None, tls_verify: true, cert_dir: None }
    }
}

impl AccessOptions {
    /// The sources of credentials.
    pub fn credential_source(&self) -> CredentialSource {
        match &self.lookup {
            Some(lookup) => CredentialSource::elsewhere(lookup.clone()),
            None => CredentialSource::from_environment(self.credentials.clone(), self.authfile.clone()),
        }
    }
}
