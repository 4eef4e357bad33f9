//! [`PublicKey`]: checks signatures. ECDSA on P-256 and P-384, RSA and Ed25519: what the TLS library brings along.

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use webpki::{RawPublicKeyEntity, ring};

/// What sigstore signs with: the hash is SHA-256 whatever the key.
const ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 4] =
    [ring::ECDSA_P256_SHA256, ring::ECDSA_P384_SHA256, ring::RSA_PKCS1_2048_8192_SHA256, ring::ED25519];

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(SubjectPublicKeyInfoDer<'static>);

impl PublicKey {
    /// Parses `-----BEGIN PUBLIC KEY-----`.
    ///
    /// # Errors
    /// There is no such block, or its content is not a public key.
    pub fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let key = SubjectPublicKeyInfoDer::from_pem_slice(pem).map_err(|error| format!("not a public key: {error}"))?;
        RawPublicKeyEntity::try_from(&key).map_err(|error| format!("not a public key: {error}"))?;
        Ok(Self(key))
    }

    /// The key of these bytes (`SubjectPublicKeyInfo`), which are read when a signature is checked.
    pub fn from_der(der: Vec<u8>) -> Self {
        Self(der.into())
    }

    /// Its bytes.
    pub fn into_der(self) -> Vec<u8> {
        self.0.as_ref().to_vec()
    }

    /// Whether the key signed `message`.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let Ok(key) = RawPublicKeyEntity::try_from(&self.0) else { return false };
        // An algorithm that does not fit the key is an error like a wrong signature.
        ALGORITHMS.into_iter().any(|algorithm| key.verify_signature(algorithm, message, signature).is_ok())
    }
}
