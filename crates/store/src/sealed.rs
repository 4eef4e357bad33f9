//! Small JSON files that carry the digest of their own text.
//!
//! `{"digest":"sha256:…","value":{…}}`: the digest covers the text of `value`, so a record corrupted by a power cut or a
//! bad disk is detected before it is parsed. It protects against accidents, not against attackers with write access.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tarpon_oci::{Digest, Verified};

/// Why a sealed file was not trusted.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// Not the envelope, or not the expected value.
    #[error("not a record of this version: {0}")]
    Format(#[from] serde_json::Error),
    /// The text of the value does not match the digest in the envelope.
    #[error("damaged record: {0}")]
    Digest(#[from] tarpon_oci::DigestMismatch),
}

#[derive(Serialize)]
struct Envelope<'a> {
    digest: Digest,
    value: &'a RawValue,
}

#[derive(Deserialize)]
struct ReadEnvelope<'a> {
    digest: Digest,
    #[serde(borrow)]
    value: &'a RawValue,
}

pub(crate) fn seal<T: Serialize>(value: &T) -> Result<Vec<u8>, serde_json::Error> {
    let value = serde_json::value::to_raw_value(value)?;
    let mut text = serde_json::to_vec(&Envelope { digest: Digest::of(value.get().as_bytes()), value: &value })?;
    text.push(b'\n');
    Ok(text)
}

pub(crate) fn unseal<T: DeserializeOwned>(text: &[u8]) -> Result<T, SealError> {
    let envelope: ReadEnvelope<'_> = serde_json::from_slice(text)?;
    let value = Verified::check(&envelope.digest, envelope.value.get())?;
    Ok(serde_json::from_str(&value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_comes_back() {
        let text = seal(&vec!["a", "b"]).unwrap();
        assert_eq!(unseal::<Vec<String>>(&text).unwrap(), ["a", "b"]);
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let text = seal(&vec!["a", "b"]).unwrap();
        for at in 0..text.len() - 1 {
            let mut damaged = text.clone();
            damaged[at] ^= 1;
            assert_ne!(unseal::<Vec<String>>(&damaged).ok(), Some(vec![]), "{at}");
            assert!(unseal::<Vec<String>>(&damaged).is_err(), "{at}");
        }
        assert!(unseal::<Vec<String>>(&text[..text.len() / 2]).is_err());
    }
}
