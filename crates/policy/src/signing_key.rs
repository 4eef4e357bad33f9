//! [`SigningKey`]: a private key that signs. Nothing of it is shown or written.

use std::fmt;
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;

use crate::cosign_key;
use crate::key::PublicKey;

/// The schemes of sigstore, by kind of key: the hash is SHA-256.
const SCHEMES: [SignatureScheme; 3] =
    [SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::RSA_PKCS1_SHA256, SignatureScheme::ED25519];

/// The file is not a key that can sign.
#[derive(Debug, thiserror::Error)]
pub enum InvalidKey {
    /// Not a private key.
    #[error("not a private key in PEM: {0}")]
    NotAKey(String),
    /// A kind of key that does not sign here.
    #[error("this kind of key cannot sign: use ECDSA on P-256, RSA or Ed25519")]
    Kind,
    /// The key is encrypted, and no password was given.
    #[error("the key is encrypted: set $COSIGN_PASSWORD")]
    NoPassword,
    /// It cannot be decrypted.
    #[error("the key cannot be decrypted: {0}")]
    Encrypted(String),
}

/// A private key.
#[derive(Clone)]
pub struct SigningKey(Arc<dyn rustls::sign::SigningKey>);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

impl SigningKey {
    /// Parses a key as PKCS#8, SEC 1 or PKCS#1 in PEM, or as cosign writes it, encrypted with `password`.
    ///
    /// # Errors
    /// The text is not a key, of another kind, or cannot be decrypted.
    pub fn from_pem(pem: &[u8], password: Option<&[u8]>) -> Result<Self, InvalidKey> {
        let key = match cosign_key::sealed(pem) {
            Some(sealed) => {
                let der = cosign_key::open(&sealed, password.ok_or(InvalidKey::NoPassword)?);
                let der = der.map_err(InvalidKey::Encrypted)?;
                PrivateKeyDer::Pkcs8(der.into())
            }
            None => PrivateKeyDer::from_pem_slice(pem).map_err(|error| InvalidKey::NotAKey(error.to_string()))?,
        };
        let key = any_supported_type(&key).map_err(|error| InvalidKey::NotAKey(error.to_string()))?;
        if key.choose_scheme(&SCHEMES).is_none() || key.public_key().is_none() {
            return Err(InvalidKey::Kind);
        }
        Ok(Self(key))
    }

    /// Signs `message`.
    ///
    /// # Errors
    /// [`InvalidKey::Kind`] if the key cannot do it.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, InvalidKey> {
        let signer = self.0.choose_scheme(&SCHEMES).ok_or(InvalidKey::Kind)?;
        signer.sign(message).map_err(|_| InvalidKey::Kind)
    }

    /// The key that verifies what this one signs.
    ///
    /// # Errors
    /// [`InvalidKey::Kind`] if it is not known.
    pub fn public_key(&self) -> Result<PublicKey, InvalidKey> {
        let key = self.0.public_key().ok_or(InvalidKey::Kind)?;
        Ok(PublicKey::from_der(key.as_ref().to_vec()))
    }
}
