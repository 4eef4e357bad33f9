//! What an inode is: [`NodeId`], [`Kind`], [`Attr`].

use tarpon_layer::Timestamp;
use tarpon_oci::Digest;
pub use tarpon_tree::Kind;

/// Names an inode towards the kernel for as long as it is mounted. The root is [`NodeId::ROOT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of every file system.
    pub const ROOT: Self = Self(1);
}

/// Attributes of an inode. They never change while it is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Its id, which is its inode number too.
    pub node: NodeId,
    /// What it is.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky: `mode & 0o7777`.
    pub mode: u16,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of a file or of a link's target; of a directory, whatever the tree says.
    pub size: u64,
    /// Modification time; stands for access and change time too, which images do not have.
    pub mtime: Timestamp,
    /// Major and minor number of a device, else zeros.
    pub device: (u32, u32),
}

/// One name in a directory.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// The name, without slash and NUL; any other bytes.
    pub name: &'a [u8],
    /// What it names.
    pub node: NodeId,
    /// Of what kind that is.
    pub kind: Kind,
    /// Where to go on after this entry: give it to `read_dir` to get the entries behind this one.
    pub next: u64,
}

/// The content of a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// The object that holds it; `None` if the file is empty.
    pub object: Option<Digest>,
    /// Its length in bytes.
    pub size: u64,
}
