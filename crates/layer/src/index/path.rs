//! A path inside a layer, normalised once.

use std::fmt;

use tarpon_oci::limits;

/// A normalised path from the root of a layer: components joined by `/`, no leading, trailing or doubled slash, no
/// `.` or `..`, each component 1 to 255 bytes, at most 4096 bytes and 256 components in all. Any bytes but NUL
/// and `/` in a component; it need not be UTF-8. The root is the empty path. Ordered by bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LayerPath(Box<[u8]>);

/// Why a name of a tar or TOC is not a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    /// The name is empty. The root is written `/` or `./`.
    #[error("the name is empty")]
    Empty,
    /// Linux has no such names.
    #[error("the name contains a NUL byte")]
    Nul,
    /// More `..` than there are components before them.
    #[error("the name leads out of the layer's root")]
    Escapes,
    /// A component over [`limits::NAME_BYTES`].
    #[error("a component of the name is longer than {} bytes", limits::NAME_BYTES)]
    NameTooLong,
    /// Over [`limits::PATH_BYTES`].
    #[error("the name is longer than {} bytes", limits::PATH_BYTES)]
    TooLong,
    /// Over [`limits::PATH_DEPTH`].
    #[error("the name has more than {} components", limits::PATH_DEPTH)]
    TooDeep,
    /// `.wh.` without a name, or before `.` or `..`.
    #[error("the whiteout names nothing that could be removed")]
    Whiteout,
    /// A whiteout used as a directory.
    #[error("the name lies below a whiteout")]
    BelowWhiteout,
}

impl LayerPath {
    /// The root.
    pub fn root() -> Self {
        Self::default()
    }

    /// Parses a name of a tar or TOC: leading and doubled slashes and `.` are removed, `..` removes the component before it
    /// (textually, as tar readers do, without following symbolic links).
    ///
    /// # Errors
    /// Empty names, NUL bytes, `..` beyond the root, and names over the limits.
    pub fn from_tar_name(name: &[u8]) -> Result<Self, InvalidPath> {
        let path = normalise(name)?;
        Self::checked(path)
    }

    /// `bytes` as a path, if they are in normal form. Nothing is normalised.
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

    /// Checks the limits of a path that [`normalise`] made.
    pub(super) fn checked(path: Vec<u8>) -> Result<Self, InvalidPath> {
        if path.len() > limits::PATH_BYTES {
            return Err(InvalidPath::TooLong);
        }
        let mut depth = 0;
        for component in path.split(|byte| *byte == b'/') {
            depth += 1;
            if component.len() > limits::NAME_BYTES {
                return Err(InvalidPath::NameTooLong);
            }
        }
        if depth > limits::PATH_DEPTH {
            return Err(InvalidPath::TooDeep);
        }
        Ok(Self(path.into_boxed_slice()))
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

    /// The parent path and the last component. None for the root.
    pub fn split_last(&self) -> Option<(&[u8], &[u8])> {
        if self.is_root() {
            return None;
        }
        Some(split_last(&self.0))
    }
}

/// The parent path (empty for the root) and the last component of a non-empty normalised path.
pub(super) fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

/// The name without empty components, `.` and `..`. The caller checks the limits, because a whiteout's prefix does not count.
pub(super) fn normalise(name: &[u8]) -> Result<Vec<u8>, InvalidPath> {
    if name.is_empty() {
        return Err(InvalidPath::Empty);
    }
    if name.contains(&0) {
        return Err(InvalidPath::Nul);
    }
    let mut path = Vec::with_capacity(name.len());
    for component in name.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." if path.is_empty() => return Err(InvalidPath::Escapes),
            b".." => path.truncate(path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
            _ => push_component(&mut path, component),
        }
    }
    Ok(path)
}

/// `path`, which is below the symbolic link `link`, with the link replaced by its target. At the root, `..` stays there, as in
/// Linux. Behind a named component it is refused: that may be a link too, and removing it textually would be wrong.
pub(super) fn through_link(path: &LayerPath, link: &LayerPath, target: &[u8]) -> Result<LayerPath, InvalidPath> {
    let mut result = match target.first() {
        Some(b'/') => Vec::new(),
        _ => split_last(&link.0).0.to_vec(),
    };
    let mut is_named = false;
    for component in target.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." if is_named => return Err(InvalidPath::Escapes),
            b".." => result.truncate(result.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
            _ => {
                is_named = true;
                push_component(&mut result, component);
            }
        }
    }
    for component in path.0[link.0.len()..].split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        push_component(&mut result, component);
    }
    LayerPath::checked(result)
}

fn push_component(path: &mut Vec<u8>, component: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(component);
}

impl AsRef<[u8]> for LayerPath {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Allows look-ups with plain bytes in a map keyed by paths. Hashes and compares like the bytes.
impl std::borrow::Borrow<[u8]> for LayerPath {
    fn borrow(&self) -> &[u8] {
        &self.0
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

    fn path(name: &str) -> Result<String, InvalidPath> {
        LayerPath::from_tar_name(name.as_bytes()).map(|path| path.to_string())
    }

    #[test]
    fn all_spellings_of_a_name_are_one_path() {
        for name in ["a/b", "./a/b", "/a/b", "a//b", "a/b/", "//a/./b//", "a/c/../b", "c/../a/b"] {
            assert_eq!(path(name), Ok("/a/b".to_owned()), "{name}");
        }
        for name in ["/", ".", "./", "a/..", "//."] {
            assert_eq!(path(name), Ok("/".to_owned()), "{name}");
        }
    }

    #[test]
    fn names_out_of_the_root_or_over_the_limits_are_refused() {
        assert_eq!(path(""), Err(InvalidPath::Empty));
        assert_eq!(path("a\0b"), Err(InvalidPath::Nul));
        assert_eq!(path("../a"), Err(InvalidPath::Escapes));
        assert_eq!(path("a/../../a"), Err(InvalidPath::Escapes));
        assert!(path(&"n".repeat(255)).is_ok());
        assert_eq!(path(&"n".repeat(256)), Err(InvalidPath::NameTooLong));
        assert_eq!(path(&"a/".repeat(257)), Err(InvalidPath::TooDeep));
        assert_eq!(path(&format!("{}/", "n".repeat(200)).repeat(21)), Err(InvalidPath::TooLong));
    }

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

    #[test]
    fn bytes_that_are_no_text_survive() {
        let path = LayerPath::from_tar_name(b"./\xff\n/.wh").unwrap();
        assert_eq!(path.as_bytes(), b"\xff\n/.wh");
        assert_eq!(path.split_last(), Some((&b"\xff\n"[..], &b".wh"[..])));
    }
}
