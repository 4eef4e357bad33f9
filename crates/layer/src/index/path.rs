//! A path inside a layer, normalised once and for good.

use std::fmt;

use tarpon_oci::limits;

/// A normalised path from the root of a layer: components joined by `/`, no leading, trailing or doubled slash, no
/// `.` or `..`, each component 1 to 255 bytes, at most 4096 bytes and 256 components in all. Any bytes but NUL
/// and `/` in a component; it need not be UTF-8. The root is the empty path. Ordered by bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LayerPath(Box<[u8]>);

impl LayerPath {
    /// The root.
    pub fn root() -> Self {
        Self::default()
    }

    /// `bytes` as a path, if they are one in its normal form already; nothing is normalised.
    pub fn from_normal(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::root());
        }
        let component = |name: &[u8]| {
            (1..=limits::NAME_BYTES).contains(&name.len()) && name != b"." && name != b".." && !name.contains(&0)
        };
        let mut depth = 0;
        let normal = bytes.split(|byte| *byte == b'/').all(|name| {
            depth += 1;
            component(name)
        });
        (normal && depth <= limits::PATH_DEPTH && bytes.len() <= limits::PATH_BYTES).then(|| Self(bytes.into()))
    }

    /// The bytes, without a leading slash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The components from the root down.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    /// The path one up and the last component; none for the root.
    pub fn split_last(&self) -> Option<(&[u8], &[u8])> {
        if self.is_root() {
            return None;
        }
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => Some((&self.0[..slash], &self.0[slash + 1..])),
            None => Some((&[], &self.0)),
        }
    }
}

impl fmt::Display for LayerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for LayerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_normal_paths_are_taken_as_they_are() {
        for path in ["", "a", "a/b", "a/...", ".wh.a", "\u{e9}/ "] {
            assert_eq!(LayerPath::from_normal(path.as_bytes()).unwrap().as_bytes(), path.as_bytes());
        }
        let long = "x".repeat(256);
        let deep = "d/".repeat(256) + "d";
        for path in ["/", "/a", "a/", "a//b", ".", "..", "a/./b", "a/..", "a\0b", &long, &deep] {
            assert_eq!(LayerPath::from_normal(path.as_bytes()), None, "{path:?}");
        }
    }
}
