//! Selects the extended attributes that an image may set.

use tarpon_oci::limits;

use super::Xattr;

/// Collects the xattrs of one entry: keeps what images may set, drops and counts the rest.
///
/// `user.*` and `security.capability` pass. Everything else (`trusted.*`, `system.*`, other `security.*`) belongs to the host, and
/// `user.overlay.*` would control the overlay file system that the image is mounted under.
#[derive(Debug, Default)]
pub(crate) struct XattrSet {
    kept: Vec<Xattr>,
    dropped: u64,
}

/// An xattr over a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidXattr {
    /// Over [`limits::XATTR_NAME_BYTES`], or an invalid name.
    #[error("an xattr has no name, a NUL byte in its name, or a name longer than {} bytes", limits::XATTR_NAME_BYTES)]
    Name,
    /// Over [`limits::XATTR_VALUE_BYTES`].
    #[error("an xattr's value is longer than {} bytes", limits::XATTR_VALUE_BYTES)]
    Value,
    /// Over [`limits::XATTRS`].
    #[error("there are more than {} xattrs", limits::XATTRS)]
    TooMany,
}

impl XattrSet {
    /// Adds one attribute. Of two with one name the later one counts, as in PAX.
    pub(crate) fn insert(&mut self, name: &[u8], value: &[u8]) -> Result<(), InvalidXattr> {
        if !is_allowed(name) {
            self.dropped += 1;
            return Ok(());
        }
        if name.len() > limits::XATTR_NAME_BYTES || name.contains(&0) || name == b"user." {
            return Err(InvalidXattr::Name);
        }
        if value.len() > limits::XATTR_VALUE_BYTES {
            return Err(InvalidXattr::Value);
        }
        match self.kept.binary_search_by(|xattr| (*xattr.name).cmp(name)) {
            Ok(place) => self.kept[place].value = value.into(),
            Err(_) if self.kept.len() == limits::XATTRS => return Err(InvalidXattr::TooMany),
            Err(place) => self.kept.insert(place, Xattr { name: name.into(), value: value.into() }),
        }
        Ok(())
    }

    /// The kept ones by name, and the number of dropped ones. Leaves the set empty.
    pub(crate) fn take(&mut self) -> (Vec<Xattr>, u64) {
        (std::mem::take(&mut self.kept), std::mem::take(&mut self.dropped))
    }
}

fn is_allowed(name: &[u8]) -> bool {
    name == b"security.capability"
        || name.starts_with(b"user.") && name != b"user.overlay" && !name.starts_with(b"user.overlay.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_user_xattrs_and_capabilities_pass() {
        let mut set = XattrSet::default();
        let dropped = [
            "trusted.overlay.opaque",
            "user.overlay.redirect",
            "system.posix_acl_access",
            "security.selinux",
            "trusted.x",
            "note",
        ];
        for name in dropped {
            set.insert(name.as_bytes(), b"y").unwrap();
        }
        for name in ["user.z", "security.capability", "user.overlays", "user.a", "user.z"] {
            set.insert(name.as_bytes(), b"v").unwrap();
        }
        let (kept, count) = set.take();
        let names: Vec<_> = kept.iter().map(|xattr| xattr.name.escape_ascii().to_string()).collect();
        assert_eq!(names, ["security.capability", "user.a", "user.overlays", "user.z"]);
        assert_eq!(count, 6);
    }

    #[test]
    fn limits_are_kept() {
        let mut set = XattrSet::default();
        assert_eq!(set.insert(b"user.", b""), Err(InvalidXattr::Name));
        assert_eq!(set.insert(&[b"user.".as_slice(), &[b'n'; 251]].concat(), b""), Err(InvalidXattr::Name));
        assert_eq!(set.insert(b"user.v", &vec![0; (64 << 10) + 1]), Err(InvalidXattr::Value));
        for number in 0..256 {
            set.insert(format!("user.{number}").as_bytes(), b"").unwrap();
        }
        assert_eq!(set.insert(b"user.more", b""), Err(InvalidXattr::TooMany));
    }
}
