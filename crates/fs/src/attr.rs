//! Inodes: [`NodeId`], [`Kind`], [`Attr`].

use tarpon_layer::Timestamp;
use tarpon_oci::Digest;
pub use tarpon_tree::Kind;

/// Identifies an inode towards the kernel while the file system is mounted. The root is [`NodeId::ROOT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of every file system.
    pub const ROOT: Self = Self(1);
}

/// Attributes of an inode. They never change while the file system is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Its id, which is also its inode number.
    pub node: NodeId,
    /// Its kind.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky: `mode & 0o7777`.
    pub mode: u16,
    /// Number of links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes of a file or of a link's target; for a directory, the value in the tree.
    pub size: u64,
    /// Modification time; also used for access and change time, which images do not have.
    pub mtime: Timestamp,
    /// Major and minor number of a device, else zeros.
    pub device: (u32, u32),
}

/// One name in a directory.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// The name, without slash and NUL; any other bytes.
    pub name: &'a [u8],
    /// The inode that it names.
    pub node: NodeId,
    /// Kind of that inode.
    pub kind: Kind,
    /// Position after this entry: pass it to `read_dir` to get the following entries.
    pub next: u64,
}

/// The content of a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// The object that contains it; `None` if the file is empty.
    pub object: Option<Digest>,
    /// Its length in bytes.
    pub size: u64,
}
