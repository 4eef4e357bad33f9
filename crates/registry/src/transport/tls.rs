//! TLS settings: trusted roots and client certificates.
//!
//! Roots are the system's (`SSL_CERT_FILE` and `SSL_CERT_DIR` are honoured) and those of Podman's and Docker's
//! per-registry folders: `*.crt` is a root, `NAME.cert` with `NAME.key` a client certificate.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::system_roots;
use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Folders where Podman and Docker look for the certificates of `HOST[:PORT]`.
const CERTIFICATE_FOLDERS: [&str; 2] = ["/etc/containers/certs.d", "/etc/docker/certs.d"];

/// The contents of a folder of certificates.
#[derive(Default)]
pub(crate) struct Certificates {
    roots: Vec<CertificateDer<'static>>,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl Certificates {
    /// The certificates for `host`: of `folder` if the user named one, else of the first default folder that exists.
    pub(crate) fn load(folder: Option<&Path>, host: &str) -> Result<Self, String> {
        match folder {
            Some(folder) => Self::read(folder).map_err(|error| format!("cannot read {}: {error}", folder.display())),
            None => {
                let folders = CERTIFICATE_FOLDERS.iter().map(|folder| Path::new(folder).join(host));
                match folders.into_iter().find(|folder| folder.is_dir()) {
                    Some(folder) => {
                        Self::read(&folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))
                    }
                    None => Ok(Self::default()),
                }
            }
        }
    }

    /// Adds files with certificates of authorities, and client certificates with their keys: the last one is used.
    pub(crate) fn add(
        &mut self,
        authorities: &[PathBuf],
        identities: &[(PathBuf, Option<PathBuf>)],
    ) -> Result<(), String> {
        let shown = |error: io::Error| format!("cannot read {error}");
        for file in authorities {
            self.roots.extend(certificates(file).map_err(shown)?);
        }
        for (certificate, key) in identities {
            let key = key.as_ref().unwrap_or(certificate);
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| shown(invalid(key, error)))?;
            self.identity = Some((certificates(certificate).map_err(shown)?, key));
        }
        Ok(())
    }

    /// The roots alone.
    pub(crate) fn without_identity(self) -> Self {
        Self { identity: None, ..self }
    }

    fn read(folder: &Path) -> io::Result<Self> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        files.sort();
        let mut found = Self::default();
        for file in files {
            match file.extension().and_then(|extension| extension.to_str()) {
                Some("crt") => found.roots.extend(certificates(&file)?),
                Some("cert") => {
                    let key = file.with_extension("key");
                    let key = PrivateKeyDer::from_pem_file(&key).map_err(|error| invalid(&key, error))?;
                    found.identity = Some((certificates(&file)?, key));
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// The settings for a host that an answer named: never with our client certificate.
    pub(crate) fn for_others(&self) -> Result<ClientConfig, String> {
        let builder = builder()?.with_root_certificates(self.root_store());
        Ok(builder.with_no_client_auth())
    }

    /// The settings for the registry that the user named.
    pub(crate) fn for_registry(&self, verify: bool) -> Result<ClientConfig, String> {
        let builder = builder()?;
        let builder = if verify {
            builder.with_root_certificates(self.root_store())
        } else {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider())))
        };
        match &self.identity {
            Some((chain, key)) => builder
                .with_client_auth_cert(chain.clone(), key.clone_key())
                .map_err(|error| format!("client certificate: {error}")),
            None => Ok(builder.with_no_client_auth()),
        }
    }

    fn root_store(&self) -> Arc<RootCertStore> {
        let system = system_roots::get();
        if self.roots.is_empty() {
            return system;
        }
        let mut store = Arc::unwrap_or_clone(system);
        store.add_parsable_certificates(self.roots.iter().cloned());
        store.into()
    }
}

fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    found.map_err(|error| invalid(file, error))
}

fn invalid(file: &Path, error: rustls::pki_types::pem::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", file.display()))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, String> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())
}

/// `--tls-verify=false`: any certificate is accepted. The handshake itself is still checked.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
