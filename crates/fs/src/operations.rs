//! [`Operations`]: the requests that the kernel may send to a file system here.

use std::collections::HashSet;

use bytes::Bytes;
use futures::future::BoxFuture;
use tarpon_oci::Digest;

use crate::{Attr, Content, DirEntry, Errno, Kind, NodeId};

/// A read-only file system, without its bytes (those are read through [`crate::Reads`]). Every call answers from memory:
/// none may wait for the disk or the network, because a process that waits in a lookup cannot be killed.
///
/// Every change is refused, mostly before it gets here.
pub trait Operations: Send + Sync + 'static {
    /// Looks up `name` in the directory `parent`. Each success is one reference that `forget` returns.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr, Errno>;

    /// The attributes of an inode.
    fn attributes(&self, node: NodeId) -> Result<Attr, Errno>;

    /// The target of a symbolic link.
    fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno>;

    /// Passes the entries of a directory to `take`, `.` and `..` included, from `position` on (0 is the start, then a
    /// value of [`DirEntry::next`]) until it returns [`Take::Enough`]; that entry will be passed again.
    fn read_dir(&self, node: NodeId, position: u64, take: &mut dyn FnMut(DirEntry<'_>) -> Take) -> Result<(), Errno>;

    /// The value of an extended attribute.
    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno>;

    /// The names of all extended attributes, each followed by a NUL.
    fn xattr_names(&self, node: NodeId) -> Result<Vec<u8>, Errno>;

    /// Whether any inode has extended attributes. If none has, the kernel need not query each.
    fn has_xattrs(&self) -> bool;

    /// The content of a regular file.
    fn content(&self, node: NodeId) -> Result<Content, Errno>;

    /// Drops `count` of the references that lookups gave to the kernel.
    fn forget(&self, node: NodeId, count: u64);

    /// Whether a missing name may appear while the file system is mounted.
    fn names_may_appear(&self) -> bool;

    /// Whether this inode's attributes and, for a directory, the targets of its names never change while the file system
    /// is mounted.
    fn lasts(&self, _node: NodeId) -> bool {
        true
    }

    /// Whether each inode is found by its number at any time, by a lookup of `.` in it, and each directory's parent by `..`: then handles of
    /// files are valid as long as the mount.
    fn finds_by_number(&self) -> bool {
        false
    }

    /// Whether the listing of any directory may change while the file system is mounted.
    fn lists_change(&self) -> bool {
        false
    }

    /// The bytes of a file that the file system holds itself; `None` for the bytes of an object.
    fn held(&self, _node: NodeId) -> Option<Bytes> {
        None
    }

    /// Whether any inode has access lists, which the kernel then queries for each.
    fn has_access_lists(&self) -> bool {
        self.has_xattrs()
    }

    /// The future to await before `name` is looked up in `parent`, where the result must be determined first. It always
    /// ends in less than two minutes, because a process that waits in a lookup cannot be killed. `None`: nothing to
    /// await.
    fn before_lookup(&self, _parent: NodeId, _name: &[u8]) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// The bytes, from `offset` on, of a file that is neither held nor an object. Ends within the same time. `None` for
    /// other files.
    fn streamed(&self, _node: NodeId, _offset: u64, _length: u32) -> Option<BoxFuture<'static, Result<Bytes, Errno>>> {
        None
    }

    /// Answers an attempt to change something, which never succeeds but may have a meaning. `None`: it has none.
    fn attempted(&self, _parent: NodeId, _name: &[u8], _what: Attempt) -> Option<BoxFuture<'static, Errno>> {
        None
    }

    /// Whether attempts to change something have a meaning here. Otherwise the mount is read-only and the kernel itself
    /// refuses them.
    fn forwards_changes(&self) -> bool {
        false
    }

    /// The inodes of regular files that contain one of these objects, as far as they can be listed: the kernel must drop
    /// their pages.
    fn nodes_of(&self, objects: &HashSet<Digest>) -> Vec<NodeId> {
        let (mut found, mut pending) = (Vec::new(), vec![NodeId::ROOT]);
        while let Some(directory) = pending.pop() {
            let mut take = |entry: DirEntry<'_>| {
                if entry.kind == Kind::Directory && entry.name != b"." && entry.name != b".." {
                    pending.push(entry.node);
                } else if entry.kind == Kind::File
                    && let Ok(Content { object: Some(object), .. }) = self.content(entry.node)
                    && objects.contains(&object)
                {
                    found.push(entry.node);
                }
                Take::More
            };
            // An unreadable directory shows no content to any reader.
            let _read = self.read_dir(directory, 0, &mut take);
        }
        found
    }

    /// Figures for `statfs`.
    fn totals(&self) -> Totals;
}

/// An attempted change of a name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Create a file of this name.
    Create,
    /// Remove the directory of this name.
    RemoveDirectory,
}

/// Whether a directory's reader has room for more entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// The entry was taken; go on.
    More,
    /// The entry was not taken; stop.
    Enough,
}

/// Size of a whole file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes of all files.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
}
