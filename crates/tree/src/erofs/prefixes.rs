//! Names of xattrs, as EROFS splits them: a number for the namespace or for a long prefix, and the rest.

/// The namespaces that occur, by their number. The two ACLs are whole names.
pub(super) const NAMESPACES: [(u8, &[u8]); 5] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (TRUSTED, b"trusted."),
    (6, b"security."),
];
const TRUSTED: u8 = 4;

/// Bit of a number that marks a long prefix.
pub(super) const LONG: u8 = 0x80;

/// The xattr by which overlayfs recognises a file without data.
pub(super) const METACOPY: &[u8] = b"trusted.overlay.metacopy";
/// The xattr that names the file with the data.
pub(super) const REDIRECT: &[u8] = b"trusted.overlay.redirect";
/// The xattr by which overlayfs recognises a directory that hides the content of lower layers.
pub(super) const OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// Prefix of xattrs of an image that are never shown.
pub(super) const HIDDEN: &[u8] = b"trusted.overlay.";

/// Prefixes in the table of an image: both names that every file carries, whole. That makes an inode with data 32 bytes smaller, a fifth.
static LONG_PREFIXES: [(u8, &[u8]); 2] = [(LONG, METACOPY), (LONG + 1, REDIRECT)];

/// The long prefixes in the table of an image.
#[derive(Clone, Copy)]
pub(super) enum LongPrefixes {
    /// [`LONG_PREFIXES`], which Linux 6.4 and newer read.
    Both,
    None,
}

impl LongPrefixes {
    fn list(self) -> &'static [(u8, &'static [u8])] {
        match self {
            Self::Both => &LONG_PREFIXES,
            Self::None => &[],
        }
    }

    pub(super) fn count(self) -> u8 {
        u8::try_from(self.list().len()).expect("there are few")
    }

    /// The number and the rest of a name. None in a namespace that images cannot set.
    pub(super) fn split(self, name: &[u8]) -> Option<(u8, &[u8])> {
        self.list().iter().find_map(|prefix| after(name, *prefix)).or_else(|| split_namespace(name))
    }

    /// The table in its disk format: each prefix with its length before it and padded to four bytes.
    pub(super) fn encode(self) -> Vec<u8> {
        let mut table = Vec::new();
        for (_, prefix) in self.list() {
            let (namespace, infix) = split_namespace(prefix).expect("long prefixes begin with a namespace");
            let length = u16::try_from(1 + infix.len()).expect("long prefixes are short");
            table.extend(length.to_le_bytes());
            table.push(namespace);
            table.extend(infix);
            table.resize(table.len().next_multiple_of(4), 0);
        }
        table
    }
}

fn split_namespace(name: &[u8]) -> Option<(u8, &[u8])> {
    NAMESPACES.into_iter().find_map(|prefix| after(name, prefix))
}

fn after<'n>(name: &'n [u8], (number, prefix): (u8, &[u8])) -> Option<(u8, &'n [u8])> {
    Some((number, name.strip_prefix(prefix)?))
}

/// The namespace with this number.
pub(super) fn namespace(number: u8) -> Option<&'static [u8]> {
    NAMESPACES.into_iter().find(|(known, _)| *known == number).map(|(_, prefix)| prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_at_the_longest_known_prefix() {
        let long = LongPrefixes::Both;
        assert_eq!(long.split(b"user.note"), Some((1, &b"note"[..])));
        assert_eq!(long.split(b"system.posix_acl_default"), Some((3, &b""[..])));
        assert_eq!(long.split(REDIRECT), Some((LONG + 1, &b""[..])));
        assert_eq!(LongPrefixes::None.split(REDIRECT), Some((4, &b"overlay.redirect"[..])));
        assert_eq!(long.split(b"trusted.overlay.opaque"), Some((4, &b"overlay.opaque"[..])));
        assert_eq!(long.split(b"system.nfs4_acl"), None);
    }

    #[test]
    fn the_table_holds_length_namespace_and_infix() {
        assert_eq!(LongPrefixes::Both.encode(), b"\x11\0\x04overlay.metacopy\0\x11\0\x04overlay.redirect\0");
        assert_eq!(LongPrefixes::None.encode(), b"");
    }
}
