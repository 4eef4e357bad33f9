//! Overlayfs's extended attributes of a file in an upper directory, and which of them a layer keeps.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use tarpon_layer::Xattr;
use tarpon_oci::limits;

/// Prefixes of the attributes for mounts by root, and for mounts by other users.
const TRUSTED: &[u8] = b"trusted.overlay.";
const USER: &[u8] = b"user.overlay.";
/// Buffer sizes for the names of a file's attributes: mostly there are few, and Linux allows no more than the last size.
const LIST_BYTES: [usize; 2] = [1 << 10, 64 << 10];

/// Whose mounts' attributes are read: those of root, which are invisible to others, or those of another user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Root,
    User,
}

/// The extended attributes of a file in an upper directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// Those that a layer keeps, by name.
    pub(super) xattrs: Vec<Xattr>,
    /// Whether overlayfs set any attribute.
    pub(super) is_marked: bool,
    /// A directory that hides the layers below.
    pub(super) is_opaque: bool,
    /// An empty file that represents a removed name.
    pub(super) is_whiteout: bool,
    /// Whether it has access control lists, which layers do not support.
    pub(super) has_acl: bool,
}

impl Marks {
    /// The attributes of the file that `file` was opened for, at least as a path.
    ///
    /// # Errors
    /// As text: an attribute by which the file is incomplete on its own, or one that cannot be read.
    pub(super) fn of(file: &OwnedFd, whose: Whose) -> Result<Self, String> {
        // An `O_PATH` descriptor has no attributes itself, and this path does not follow a link behind it.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut marks = Self::default();
        for name in names(&path).map_err(|error| format!("list its extended attributes: {error}"))? {
            marks.note(&name, whose, || {
                value(&path, &name).map_err(|error| format!("read its attribute {}: {error}", shown(&name)))
            })?;
        }
        marks.xattrs.sort_unstable();
        Ok(marks)
    }

    fn note(
        &mut self,
        name: &[u8],
        whose: Whose,
        value: impl FnOnce() -> Result<Option<Vec<u8>>, String>,
    ) -> Result<(), String> {
        let trusted = name.strip_prefix(TRUSTED);
        if let Some(mark) = trusted.or_else(|| name.strip_prefix(USER)) {
            let (by, here) = match (trusted, whose) {
                (Some(_), Whose::Root) | (None, Whose::User) => return self.mark(mark, value),
                (Some(_), Whose::User) => ("root", "another user"),
                (None, Whose::Root) => ("another user than root", "root"),
            };
            return Err(format!("it has the mark {} of a mount by {by}, and this is run by {here}", shown(name)));
        }
        if name == b"security.capability" || name.starts_with(b"user.") {
            if name.contains(&b'=') {
                return Err(format!("its attribute {} has a = in its name, which a layer cannot hold", shown(name)));
            }
            // Removed meanwhile: as if it had never existed.
            self.xattrs.extend(value()?.map(|value| Xattr { name: name.into(), value: value.into() }));
        }
        self.has_acl |= name.starts_with(b"system.posix_acl_");
        Ok(())
    }

    /// Handles an attribute of overlayfs itself. Most concern inode numbers and the like, and mean nothing elsewhere.
    fn mark(&mut self, mark: &[u8], value: impl FnOnce() -> Result<Option<Vec<u8>>, String>) -> Result<(), String> {
        self.is_marked = true;
        match mark {
            // `x` means only that some files in it are whiteouts by an attribute.
            b"opaque" => self.is_opaque = value()?.is_some_and(|value| value == b"y"),
            b"whiteout" => self.is_whiteout = true,
            b"metacopy" => {
                return Err("it holds attributes without data (a mount with metacopy=on wrote it)".to_owned());
            }
            b"redirect" => {
                return Err("it was renamed without its content (a mount with redirect_dir=on wrote it)".to_owned());
            }
            _ => {}
        }
        Ok(())
    }
}

impl Whose {
    /// The variant for this process, depending on whether it sees those of root.
    pub(super) fn here() -> Self {
        if tarpon_mount::sees_trusted() { Self::Root } else { Self::User }
    }
}

fn names(path: &str) -> rustix::io::Result<Vec<Vec<u8>>> {
    for bytes in LIST_BYTES {
        let mut list = vec![0; bytes];
        match rustix::fs::listxattr(path, &mut list) {
            Err(Errno::RANGE) => {}
            // A file system without attributes.
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            length => {
                let names = list[..length?].split(|byte| *byte == 0).filter(|name| !name.is_empty());
                return Ok(names.map(<[u8]>::to_vec).collect());
            }
        }
    }
    Err(Errno::TOOBIG)
}

fn value(path: &str, name: &[u8]) -> rustix::io::Result<Option<Vec<u8>>> {
    // One byte more than a layer may have: the layer's writer then reports the attribute by name.
    let mut value = vec![0; limits::XATTR_VALUE_BYTES + 1];
    match rustix::fs::getxattr(path, name, &mut value) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(error),
    }
}

fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(whose: Whose, names: &[(&[u8], &[u8])]) -> Result<Marks, String> {
        let mut marks = Marks::default();
        for (name, value) in names {
            marks.note(name, whose, || Ok(Some(value.to_vec())))?;
        }
        Ok(marks)
    }

    fn prefix(whose: Whose) -> &'static [u8] {
        if whose == Whose::Root { TRUSTED } else { USER }
    }

    #[test]
    fn a_layer_keeps_what_images_may_set() {
        let given: [(&[u8], &[u8]); 5] = [
            (b"user.note", b"\0a"),
            (b"security.capability", b"c"),
            (b"security.selinux", b"s"),
            (b"system.posix_acl_access", b"l"),
            (b"trusted.md5sum", b"t"),
        ];
        let found = marks(Whose::Root, &given).unwrap();
        let kept: Vec<&[u8]> = found.xattrs.iter().map(|xattr| &*xattr.name).collect();
        assert_eq!(kept, [&b"user.note"[..], b"security.capability"]);
        assert!(found.has_acl && !found.is_opaque && !found.is_whiteout && !found.is_marked);
    }

    #[test]
    fn marks_of_overlayfs_are_understood_or_refused() {
        for whose in [Whose::Root, Whose::User] {
            let one = |mark: &str, value: &[u8]| marks(whose, &[(&[prefix(whose), mark.as_bytes()].concat(), value)]);
            for harmless in ["origin", "impure", "uuid", "overlay.opaque"] {
                assert_eq!(one(harmless, b"y"), Ok(Marks { is_marked: true, ..Marks::default() }), "{harmless}");
            }
            assert!(one("opaque", b"y").unwrap().is_opaque && !one("opaque", b"x").unwrap().is_opaque);
            assert!(one("whiteout", b"").unwrap().is_whiteout);
            assert!(one("metacopy", b"").unwrap_err().contains("without data"));
            assert!(one("redirect", b"/a").unwrap_err().contains("without its content"));
        }
    }

    #[test]
    fn a_name_that_a_tar_would_cut_is_refused() {
        assert!(marks(Whose::Root, &[(b"user.a=b", b"")]).unwrap_err().contains("user.a=b has a ="));
    }

    #[test]
    fn marks_of_another_user_are_refused() {
        for (whose, other) in [(Whose::Root, Whose::User), (Whose::User, Whose::Root)] {
            let error = marks(whose, &[(&[prefix(other), b"opaque"].concat(), b"y")]).unwrap_err();
            assert!(error.contains("overlay.opaque of a mount by"), "{error}");
        }
    }
}
