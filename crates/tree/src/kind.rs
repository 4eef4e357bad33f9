//! The kinds of inode in a merged tree.

use tarpon_layer::Node;

/// The kind of an inode. Sockets do not occur: no layer format can represent them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
}

impl Kind {
    /// The kind of a layer's entry. None for hard links and whiteouts, which are no inodes of their own.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        Some(match node {
            Node::Directory => Self::Directory,
            Node::File(_) => Self::File,
            Node::Symlink(_) => Self::Symlink,
            Node::CharDevice(_) => Self::CharDevice,
            Node::BlockDevice(_) => Self::BlockDevice,
            Node::Fifo => Self::Fifo,
            Node::HardLink(_) | Node::Whiteout | Node::Opaque => return None,
        })
    }

    /// The letter that `ls -l` and `find -printf %y` use (`f` for files).
    pub fn letter(self) -> char {
        match self {
            Self::Directory => 'd',
            Self::File => 'f',
            Self::Symlink => 'l',
            Self::CharDevice => 'c',
            Self::BlockDevice => 'b',
            Self::Fifo => 'p',
        }
    }
}
