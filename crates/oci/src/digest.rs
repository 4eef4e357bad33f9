//! The only digest algorithm for names of images.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// A sha256 digest, written `sha256:<64 lower-case hex digits>`.
///
/// Other registered algorithms (sha384, sha512) are refused when parsed: objects, chunks and the TOC formats are sha256 throughout,
/// and an allow-list of one keeps unchecked algorithm names out (CVE-2024-3727).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// The text was not `sha256:` and 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a sha256 digest: {0:?}")]
pub struct InvalidDigest(String);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digest whose raw value is `bytes`.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The raw value.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hex digits, without the algorithm.
    pub fn hex(&self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // Opening a stored object needs this: digit by digit into a `String` it was a fifth of the instructions.
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        str::from_utf8(&digits).unwrap_or_default().to_owned()
    }

    /// Parses 64 lower-case hex digits.
    pub fn from_hex(hex: &str) -> Result<Self, InvalidDigest> {
        let invalid = || InvalidDigest(hex.chars().take(80).collect());
        let hex = hex.as_bytes();
        if hex.len() != 64 {
            return Err(invalid());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            let (high, low) = (nibble(pair[0]), nibble(pair[1]));
            *byte = high.zip(low).map(|(high, low)| high << 4 | low).ok_or_else(invalid)?;
        }
        Ok(Self(bytes))
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = text.strip_prefix("sha256:").ok_or_else(|| InvalidDigest(text.chars().take(80).collect()))?;
        Self::from_hex(hex)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { self.0.serialize(serializer) }
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return <[u8; 32]>::deserialize(deserializer).map(Self);
        }
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Computes a [`Digest`] from bytes that arrive piece by piece.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// A hasher without input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all added bytes.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// Hashes what is written. It never fails.
impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn digest_of_nothing_is_the_known_one_and_round_trips() {
        let digest = Digest::of(b"");
        assert_eq!(digest.to_string(), EMPTY);
        assert_eq!(EMPTY.parse(), Ok(digest));
    }

    #[test]
    fn what_is_written_is_hashed() {
        let mut hasher = Hasher::new();
        hasher.write_all(b"tar").unwrap();
        hasher.write_all(b"pon").unwrap();
        assert_eq!(hasher.finish(), Digest::of(b"tarpon"));
    }

    #[test]
    fn other_algorithms_upper_case_and_wrong_lengths_are_refused() {
        let sha512 = format!("sha512:{}", "0".repeat(128));
        for text in ["", "sha256:", "sha256:E3", &EMPTY.to_uppercase(), &EMPTY[..70], &format!("{EMPTY}0"), &sha512] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_raw_value_and_the_text_are_two_forms_of_one_digest() {
        let digest = Digest::of(b"");
        assert_eq!(digest.as_bytes()[..3], [0xe3, 0xb0, 0xc4]);
        assert_eq!(Digest::from_bytes(*digest.as_bytes()), digest);
        assert_eq!(serde_json::to_string(&digest).unwrap(), format!("\"{EMPTY}\""));
        assert_eq!(serde_json::from_str::<Digest>(&format!("\"{EMPTY}\"")).unwrap(), digest);
        assert!(serde_json::from_str::<Digest>("[0,1]").is_err());
    }
}
