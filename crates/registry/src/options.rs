//! The user's options for access to registries.

use std::path::PathBuf;
use std::sync::Arc;

use tarpon_oci::Reference;

use crate::credentials::{CredentialLookup, CredentialSource, Credentials};
use crate::registries::Endpoint;

/// Access to registries. The default: credentials as Podman finds them, certificates checked.
#[derive(Debug, Clone, Default)]
pub struct AccessOptions {
    /// `--creds USER[:PASSWORD]`: used instead of any file.
    pub credentials: Option<Credentials>,
    /// Credential files in lookup order, instead of the usual ones.
    pub authfiles: Vec<PathBuf>,
    /// Another process looks credentials up, instead of all of these.
    pub lookup: Option<Arc<dyn CredentialLookup>>,
    /// `--tls-verify`: `false` accepts any certificate of the hosts, and plain HTTP if they have no HTTPS. None: as each endpoint demands.
    pub tls_verify: Option<bool>,
    /// `--cert-dir`: `*.crt` roots, `*.cert` and `*.key` client certificate.
    pub cert_dir: Option<PathBuf>,
    /// The hosts that serve the image: its mirrors, then the registry. Empty: the registry alone.
    pub endpoints: Vec<Endpoint>,
}

impl AccessOptions {
    /// The sources of credentials.
    pub fn credential_source(&self) -> CredentialSource {
        match &self.lookup {
            Some(lookup) => CredentialSource::elsewhere(lookup.clone()),
            None => CredentialSource::from_environment(self.credentials.clone(), &self.authfiles),
        }
    }

    /// The hosts that serve `image`.
    pub fn endpoints_of(&self, image: &Reference) -> Vec<Endpoint> {
        let mut endpoints = self.endpoints.clone();
        if endpoints.is_empty() {
            endpoints.push(Endpoint::of(image.clone(), false));
        }
        for endpoint in &mut endpoints {
            endpoint.insecure = self.tls_verify.map_or(endpoint.insecure, |verifies| !verifies);
        }
        endpoints
    }

    /// Whether the certificate of a destination is checked: it has no mirrors, so the last endpoint is the registry.
    pub(crate) fn verifies_registry(&self) -> bool {
        let insecure = self.endpoints.last().is_some_and(|registry| registry.insecure);
        self.tls_verify.unwrap_or(!insecure)
    }
}
