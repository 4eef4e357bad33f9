//! [`Item`]: a format-independent entry of a layer.

/// One entry of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its name, as written (without whiteout prefix).
    pub path: Vec<u8>,
    /// Its kind.
    pub kind: ItemKind,
    /// Permission bits, setuid and the like.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The kinds of entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ItemKind {
    /// A regular file and its content.
    File(Vec<u8>),
    /// A directory.
    Directory,
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    /// A hard link and the name of the other entry.
    HardLink(Vec<u8>),
    /// A character device: major, minor.
    CharDevice(u32, u32),
    /// A block device: major, minor.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// Removes `path` from the layers below.
    Whiteout,
    /// Hides what lies below the directory `path`.
    Opaque,
}

impl Item {
    fn new(path: impl AsRef<[u8]>, kind: ItemKind, mode: u16) -> Self {
        let path = path.as_ref().to_vec();
        Self { path, kind, mode, uid: 0, gid: 0, mtime: (1_700_000_000, 0), xattrs: Vec::new() }
    }

    /// A file, 0644.
    pub fn file(path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Self {
        Self::new(path, ItemKind::File(content.as_ref().to_vec()), 0o644)
    }

    /// A directory, 0755.
    pub fn directory(path: impl AsRef<[u8]>) -> Self {
        Self::new(path, ItemKind::Directory, 0o755)
    }

    /// A symbolic link.
    pub fn symlink(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        Self::new(path, ItemKind::Symlink(target.as_ref().to_vec()), 0o777)
    }

    /// A hard link to the entry named `target`.
    pub fn hard_link(path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        Self::new(path, ItemKind::HardLink(target.as_ref().to_vec()), 0o644)
    }

    /// A character device.
    pub fn char_device(path: impl AsRef<[u8]>, major: u32, minor: u32) -> Self {
        Self::new(path, ItemKind::CharDevice(major, minor), 0o600)
    }

    /// A block device.
    pub fn block_device(path: impl AsRef<[u8]>, major: u32, minor: u32) -> Self {
        Self::new(path, ItemKind::BlockDevice(major, minor), 0o600)
    }

    /// A named pipe.
    pub fn fifo(path: impl AsRef<[u8]>) -> Self {
        Self::new(path, ItemKind::Fifo, 0o644)
    }

    /// A whiteout of `path`.
    pub fn whiteout(path: impl AsRef<[u8]>) -> Self {
        Self::new(path, ItemKind::Whiteout, 0o644)
    }

    /// An opaque marker in `directory`.
    pub fn opaque(directory: impl AsRef<[u8]>) -> Self {
        Self::new(directory, ItemKind::Opaque, 0o644)
    }

    /// Sets the permission bits.
    #[must_use]
    pub fn mode(self, mode: u16) -> Self {
        Self { mode, ..self }
    }

    /// Sets owner and group.
    #[must_use]
    pub fn owner(self, uid: u32, gid: u32) -> Self {
        Self { uid, gid, ..self }
    }

    /// Sets the modification time.
    #[must_use]
    pub fn mtime(self, seconds: i64, nanoseconds: u32) -> Self {
        Self { mtime: (seconds, nanoseconds), ..self }
    }

    /// Adds an extended attribute.
    #[must_use]
    pub fn xattr(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.xattrs.push((name.as_ref().to_vec(), value.as_ref().to_vec()));
        self
    }

    /// The name that the entry has in a tar or TOC.
    pub(crate) fn wire_name(&self) -> Vec<u8> {
        let trimmed = self.path.strip_suffix(b"/").unwrap_or(&self.path);
        match self.kind {
            ItemKind::Opaque if trimmed.is_empty() => b".wh..wh..opq".to_vec(),
            ItemKind::Opaque => [trimmed, b"/.wh..wh..opq"].concat(),
            ItemKind::Whiteout => match trimmed.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => [&trimmed[..=slash], b".wh.", &trimmed[slash + 1..]].concat(),
                None => [b".wh.", trimmed].concat(),
            },
            ItemKind::Directory if !self.path.ends_with(b"/") => [trimmed, b"/"].concat(),
            _ => self.path.clone(),
        }
    }

    /// The content of a regular file; empty for everything else.
    pub fn content(&self) -> &[u8] {
        match &self.kind {
            ItemKind::File(content) => content,
            _ => b"",
        }
    }
}
