//! [`Operations`]: the few things that the kernel may ask of a file system here.

use std::collections::HashSet;

use bytes::Bytes;
use futures::future::BoxFuture;
use tarpon_oci::Digest;

use crate::{Attr, Content, DirEntry, Errno, Kind, NodeId};

/// A read-only file system, without its bytes (those are read through [`crate::Reads`]). Every call answers from
/// memory: none may wait for the disk or the network, because a process that waits in a lookup cannot be killed.
///
/// Everything that would change something is refused, most of it before it gets here.
pub trait Operations: Send + Sync + 'static {
    /// The inode that `name` names in the directory `parent`. Each success is one reference that `forget` gives back.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr, Errno>;

    /// The attributes of an inode.
    fn attributes(&self, node: NodeId) -> Result<Attr, Errno>;

    /// The target of a symbolic link.
    fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno>;

    /// Hands the entries of a directory to `take`, `.` and `..` included, from `position` on (0 is the start, then what
    /// [`DirEntry::next`] said) until it returns [`Take::Enough`]; that entry will be handed out again.
    fn read_dir(&self, node: NodeId, position: u64, take: &mut dyn FnMut(DirEntry<'_>) -> Take) -> Result<(), Errno>;

    /// The value of an extended attribute.
    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno>;

    /// The names of all extended attributes, each with a NUL behind it.
    fn xattr_names(&self, node: NodeId) -> Result<Vec<u8>, Errno>;

    /// Whether any inode has extended attributes. If none has, the kernel need not ask again for each.
    fn has_xattrs(&self) -> bool;

    /// What a regular file holds.
    fn content(&self, node: NodeId) -> Result<Content, Errno>;

    /// The kernel drops `count` references of those that lookups gave it.
    fn forget(&self, node: NodeId, count: u64);

    /// Whether a name that is not there may come into being while the file system is mounted.
    fn names_may_appear(&self) -> bool;

    /// Whether this inode's attributes and, if it is a directory, what its names lead to stay as they are while the file system is
    /// mounted.
    fn lasts(&self, _node: NodeId) -> bool {
        true
    }

    /// Whether any directory may list something else while the file system is mounted.
    fn lists_change(&self) -> bool {
        false
    }

    /// The bytes of a file that the file system holds itself; `None` if they are those of an object.
    fn held(&self, _node: NodeId) -> Option<Bytes> {
        None
    }

    /// Whether any inode has access lists, which the kernel then asks for of each.
    fn has_access_lists(&self) -> bool {
        self.has_xattrs()
    }

    /// What to wait for before `name` is looked up in `parent`, where that has to be found out first. It ends in less than two
    /// minutes, whatever happens: who waits in a lookup cannot be killed. `None`: nothing.
    fn before_lookup(&self, _parent: NodeId, _name: &[u8]) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// The bytes of a file that are neither held nor those of an object, from `offset` on. Ends within the same time. `None`: they are.
    fn streamed(&self, _node: NodeId, _offset: u64, _length: u32) -> Option<BoxFuture<'static, Result<Bytes, Errno>>> {
        None
    }

    /// Somebody wants to change something, which never happens but may mean something: the answer. `None`: it means nothing.
    fn attempted(&self, _parent: NodeId, _name: &[u8], _what: Attempt) -> Option<BoxFuture<'static, Errno>> {
        None
    }

    /// Whether attempts to change something mean something here. Else the kernel is told that nothing can be changed, and
    /// refuses them by itself.
    fn is_told_of_attempts(&self) -> bool {
        false
    }

    /// The inodes of regular files that hold one of these objects, as far as they can be listed: the kernel is to forget their pages.
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
            // A directory that cannot be read shows nobody anything.
            let _read = self.read_dir(directory, 0, &mut take);
        }
        found
    }

    /// Figures for `statfs`.
    fn totals(&self) -> Totals;
}

/// What somebody tries to do to a name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Make a file of this name.
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
