//! Trees as text, one line per name: for comparison in tests and for `ls --long`.

use std::fmt;

use tarpon_layer::{Device, ObjectId, Timestamp};

use crate::Kind;

/// All properties of one name, in one line.
///
/// `TYPE MODE UID:GID SIZE MTIME LINKS PATH`, then, where they exist, `-> TARGET`, `dev MAJOR:MINOR`, the object, `xattr
/// NAME=VALUE`, and `same as` the first name of the same inode. Directories show no size, because it depends on the file system.
#[derive(Debug, Clone)]
pub struct Line<'a> {
    /// The path from the root, without a leading slash.
    pub path: &'a [u8],
    /// Its kind.
    pub kind: Kind,
    /// `mode & 0o7777`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file, or of a symbolic link's target.
    pub size: u64,
    /// Modification time.
    pub mtime: Timestamp,
    /// Number of names.
    pub links: u32,
    /// Target of a symbolic link.
    pub target: Option<&'a [u8]>,
    /// Numbers of a device.
    pub device: Option<Device>,
    /// Content of a file that is not empty.
    pub object: Option<ObjectId>,
    /// Names and values, sorted by name.
    pub xattrs: Vec<(Vec<u8>, &'a [u8])>,
    /// The first name of this inode, if this is a further one.
    pub same_as: Option<&'a [u8]>,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, mode, uid, gid, links, mtime: Timestamp { seconds, nanoseconds }, .. } = self;
        write!(f, "{} {mode:04o} {uid}:{gid} ", kind.letter())?;
        match kind {
            Kind::File | Kind::Symlink => write!(f, "{}", self.size)?,
            _ => f.write_str("-")?,
        }
        write!(f, " {seconds}.{nanoseconds:09} {links} /{}", self.path.escape_ascii())?;
        if let Some(target) = self.target {
            write!(f, " -> {}", target.escape_ascii())?;
        }
        if let Some(Device { major, minor }) = self.device {
            write!(f, " dev {major}:{minor}")?;
        }
        if let Some(object) = self.object {
            write!(f, " {object}")?;
        }
        for (name, value) in &self.xattrs {
            write!(f, " xattr {}={}", name.escape_ascii(), value.escape_ascii())?;
        }
        self.same_as.map_or(Ok(()), |first| write!(f, " same as /{}", first.escape_ascii()))
    }
}
