//! The meaning of a name in a layer: an entry, or one of the marker names that OCI adopted from AUFS.

use super::path::{normalise, split_last};
use super::{InvalidPath, LayerPath};

const PREFIX: &[u8] = b".wh.";
const META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The meaning of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerName {
    /// An entry at this path.
    Entry(LayerPath),
    /// `.wh.NAME`: a whiteout of this path.
    Whiteout(LayerPath),
    /// `.wh..wh..opq`: the directory at this path is opaque.
    Opaque(LayerPath),
    /// Other names that begin with `.wh..wh.`, and entries below them: bookkeeping of AUFS that image tools ignore.
    Metadata,
}

impl LayerName {
    /// Parses a name of a tar or TOC.
    ///
    /// # Errors
    /// As [`LayerPath::from_tar_name`]; whiteouts of nothing (`.wh.`), of `.` and of `..`, and entries below a whiteout.
    pub fn parse(name: &[u8]) -> Result<Self, InvalidPath> {
        let path = normalise(name)?;
        if !path.windows(PREFIX.len()).any(|window| window == PREFIX) {
            return LayerPath::checked(path).map(Self::Entry);
        }
        let (parent, last) = split_last(&path);
        for component in parent.split(|byte| *byte == b'/') {
            if component.starts_with(META_PREFIX) {
                return Ok(Self::Metadata);
            }
            if component.starts_with(PREFIX) {
                return Err(InvalidPath::BelowWhiteout);
            }
        }
        let Some(removed) = last.strip_prefix(PREFIX) else {
            return LayerPath::checked(path).map(Self::Entry);
        };
        if last == OPAQUE {
            return LayerPath::checked(parent.to_vec()).map(Self::Opaque);
        }
        if last.starts_with(META_PREFIX) {
            return Ok(Self::Metadata);
        }
        if matches!(removed, b"" | b"." | b"..") {
            return Err(InvalidPath::Whiteout);
        }
        let mut target = Vec::with_capacity(path.len());
        target.extend_from_slice(parent);
        if !parent.is_empty() {
            target.push(b'/');
        }
        target.extend_from_slice(removed);
        LayerPath::checked(target).map(Self::Whiteout)
    }
}

/// Whether the name at the end of a normal path is that of a marker, which no entry has.
pub(crate) fn is_marker(path: &[u8]) -> bool {
    split_last(path).1.starts_with(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> LayerPath {
        LayerPath::from_tar_name(name.as_bytes()).unwrap()
    }

    #[test]
    fn markers_are_distinguished_from_entries() {
        let cases = [
            ("a/.wh", LayerName::Entry(path("a/.wh"))),
            ("a/x.wh.b", LayerName::Entry(path("a/x.wh.b"))),
            ("a/.wh.b", LayerName::Whiteout(path("a/b"))),
            (".wh.b", LayerName::Whiteout(path("b"))),
            ("./a/.wh..b", LayerName::Whiteout(path("a/.b"))),
            ("a/.wh..wh..opq", LayerName::Opaque(path("a"))),
            (".wh..wh..opq", LayerName::Opaque(LayerPath::root())),
            (".wh..wh.plnk", LayerName::Metadata),
            (".wh..wh.plnk/1.2", LayerName::Metadata),
        ];
        for (name, meaning) in cases {
            assert_eq!(LayerName::parse(name.as_bytes()), Ok(meaning), "{name}");
        }
    }

    #[test]
    fn whiteouts_of_nothing_are_refused() {
        for name in ["a/.wh.", ".wh..", ".wh...", "a/.wh./"] {
            assert_eq!(LayerName::parse(name.as_bytes()), Err(InvalidPath::Whiteout), "{name}");
        }
        assert_eq!(LayerName::parse(b".wh.a/b"), Err(InvalidPath::BelowWhiteout));
    }

    #[test]
    fn the_longest_name_can_be_removed() {
        let name = format!(".wh.{}", "n".repeat(255));
        assert_eq!(LayerName::parse(name.as_bytes()), Ok(LayerName::Whiteout(path(&"n".repeat(255)))));
        assert_eq!(LayerName::parse(format!("{name}n").as_bytes()), Err(InvalidPath::NameTooLong));
    }
}
