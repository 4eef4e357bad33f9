//! [`Name`]: the names that objects of a layer have.

use tarpon_oci::Digest;

/// An object of a layer. What has another name is not a tier's: it is neither read, nor counted, nor removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Blob,
    Used,
    /// With the digest of its bytes.
    Index(Digest),
    Claim(u32),
}

impl Name {
    /// The object with this name; `None` for names that no host writes.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name.split_once('-') {
            None if name == "blob" => Some(Self::Blob),
            None if name == "used" => Some(Self::Used),
            Some(("index", hex)) => Digest::from_hex(hex).ok().map(Self::Index),
            Some(("claim", number)) => {
                let parsed: u32 = number.parse().ok()?;
                // Not "+1" or "01".
                (parsed.to_string() == number).then_some(Self::Claim(parsed))
            }
            _ => None,
        }
    }
}

/// The name of the claim with this number.
pub(crate) fn claim_name(number: u64) -> String {
    format!("claim-{number}")
}
