//! [`Tree`]: the merged tree of an image.
//!
//! An arena in pre-order: a directory is followed by everything below it, and the names of a directory ascend by bytes. So a
//! listing is a plain loop, the children of a directory are found by skipping over subtrees, and nothing recurses. Names and
//! attributes are borrowed from the layers: a name costs 24 bytes here, an inode 16.

use std::fmt::Write as _;
use std::sync::LazyLock;

use tarpon_layer::{Attributes, Device, Entry, FileContent, LayerIndex, LayerPath, Node, ObjectId, Timestamp, Xattr};

use crate::{Kind, Line, xattr};

/// A name in the tree, as a position in pre-order; 0 is the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DentryId(pub(crate) u32);

impl DentryId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A component of a path, or the empty name of the root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Component<'a> {
    path: &'a LayerPath,
    start: u16,
    stop: u16,
}

impl<'a> Component<'a> {
    /// The last component of the first `length` bytes of a path.
    pub(crate) fn last_of(path: &'a LayerPath, length: usize) -> Self {
        let above = path.as_bytes()[..length].iter().rposition(|byte| *byte == b'/');
        let offset = |offset| u16::try_from(offset).expect("paths are short");
        Self { path, start: offset(above.map_or(0, |slash| slash + 1)), stop: offset(length) }
    }

    pub(crate) fn as_bytes(&self) -> &'a [u8] {
        &self.path.as_bytes()[self.start.into()..self.stop.into()]
    }
}

/// A name. It has the fields of its [`Component`] because they are smaller without the padding of a structure of their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dentry<'a, I = u32> {
    path: &'a LayerPath,
    start: u16,
    stop: u16,
    pub(crate) parent: u32,
    /// One past the last name below this one.
    pub(crate) end: u32,
    /// The number of its inode. While layers are merged, the entry that will give it.
    pub(crate) inode: I,
}

impl<'a, I> Dentry<'a, I> {
    pub(crate) fn new(name: Component<'a>, parent: u32, end: u32, inode: I) -> Self {
        let Component { path, start, stop } = name;
        Self { path, start, stop, parent, end, inode }
    }

    pub(crate) fn name(&self) -> Component<'a> {
        Component { path: self.path, start: self.start, stop: self.stop }
    }
}

/// The inode of one or more names.
#[derive(Debug, Clone, Copy)]
pub struct Inode<'a> {
    /// None for a directory that no layer lists.
    pub(crate) entry: Option<&'a Entry>,
    pub(crate) links: u32,
    pub(crate) layer: u16,
    /// Whether this directory hides the content of lower layers: see [`crate::delta`].
    pub(crate) opaque: bool,
}

/// The content of one or more files, and the place of its chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Its name.
    pub id: ObjectId,
    /// Size in bytes, never 0.
    pub size: u64,
    /// Position of the layer that serves it, 0 for the bottom one.
    pub layer: usize,
    /// First of its chunks in that layer's [`LayerIndex::chunks`].
    pub first_chunk: u32,
    /// Number of its chunks.
    pub chunk_count: u32,
}

/// The object of an inode. None if it is not a file, or an empty one.
pub(crate) fn object_of(inode: &Inode<'_>) -> Option<Object> {
    match inode.node() {
        Node::File(content) if content.size > 0 => {
            let FileContent { size, object, first_chunk, chunk_count } = **content;
            Some(Object { id: object, size, layer: inode.layer(), first_chunk, chunk_count })
        }
        _ => None,
    }
}

/// Attributes of a directory that has entries in a layer but no entry of its own: root's, mode 0755, at the epoch, as in Podman and
/// umoci (which use the time of the unpacking).
static IMPLIED: Attributes =
    Attributes { mode: 0o755, uid: 0, gid: 0, mtime: Timestamp { seconds: 0, nanoseconds: 0 }, xattrs: Vec::new() };
static DIRECTORY: Node = Node::Directory;
/// The entry of a name that overlayfs hides in lower layers: the character device 0:0.
static WHITEOUT: LazyLock<Entry> = LazyLock::new(|| Entry {
    path: LayerPath::root(),
    node: Node::CharDevice(Device { major: 0, minor: 0 }),
    attributes: Attributes::default().into(),
});

impl<'a> Inode<'a> {
    /// A whiteout for overlayfs, without a name yet.
    pub(crate) fn whiteout() -> Self {
        Self { entry: Some(&WHITEOUT), layer: 0, links: 0, opaque: false }
    }

    /// Its node. Never a hard link or a whiteout.
    pub fn node(&self) -> &'a Node {
        self.entry.map_or(&DIRECTORY, |entry| &entry.node)
    }

    /// Its kind, without the details.
    pub fn kind(&self) -> Kind {
        Kind::of(self.node()).unwrap_or(Kind::Directory)
    }

    /// Mode, owner, times. Of the xattrs only those of [`Inode::xattrs`] belong to the tree.
    pub fn attributes(&self) -> &'a Attributes {
        self.entry.map_or(&IMPLIED, |entry| &entry.attributes)
    }

    /// The xattrs that images may set, sorted by name.
    pub fn xattrs(&self) -> impl Iterator<Item = &'a Xattr> + Clone + use<'a> {
        xattr::kept(&self.attributes().xattrs, self.kind())
    }

    /// Whether this directory hides the content of lower layers. Only the results of [`crate::delta`] have such directories.
    pub fn is_opaque(&self) -> bool {
        self.opaque
    }

    /// Number of its names. For directories as in file systems: two and the number of subdirectories.
    pub fn links(&self) -> u32 {
        self.links
    }

    /// Position of its layer, 0 for the bottom one (and for directories that no layer lists).
    pub fn layer(&self) -> usize {
        self.layer.into()
    }

    /// Size of a file or of a symbolic link's target in bytes, otherwise 0.
    pub fn size(&self) -> u64 {
        match self.node() {
            Node::File(content) => content.size,
            Node::Symlink(target) => target.len() as u64,
            _ => 0,
        }
    }

    /// Target of a symbolic link.
    pub fn target(&self) -> Option<&'a [u8]> {
        match self.node() {
            Node::Symlink(target) => Some(target),
            _ => None,
        }
    }

    /// Numbers of a device.
    pub fn device(&self) -> Option<Device> {
        match self.node() {
            Node::CharDevice(device) | Node::BlockDevice(device) => Some(*device),
            _ => None,
        }
    }

    /// Content of a file that is not empty.
    pub fn object(&self) -> Option<Object> {
        object_of(self)
    }
}

/// Sizes of a tree. Inodes, not names, except where stated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Names, the root's included.
    pub names: u64,
    /// Inodes of all kinds.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices and fifos.
    pub specials: u64,
    /// Bytes of the regular files.
    pub file_bytes: u64,
}

/// The merged tree of an image. Borrows from the layers that it was merged from.
#[derive(Debug, Clone)]
pub struct Tree<'a> {
    pub(crate) dentries: Vec<Dentry<'a>>,
    pub(crate) inodes: Vec<Inode<'a>>,
    /// One inode for each object, ascending by object.
    pub(crate) objects: Vec<usize>,
    pub(crate) dropped_xattrs: u64,
}

impl<'a> Tree<'a> {
    /// The root directory.
    pub const fn root(&self) -> DentryId {
        DentryId(0)
    }

    /// All names in pre-order, the root first, those of one directory ascending by bytes.
    pub fn walk(&self) -> impl ExactSizeIterator<Item = DentryId> + use<'a> {
        let count = u32::try_from(self.dentries.len()).unwrap_or(u32::MAX);
        (0..count).map(DentryId)
    }

    /// The names in a directory, ascending by bytes. None in anything else.
    pub fn children(&self, directory: DentryId) -> impl Iterator<Item = DentryId> {
        let end = self.dentries[directory.index()].end;
        let within = move |id: &u32| *id < end;
        let first = Some(directory.0 + 1).filter(within);
        std::iter::successors(first, move |id| Some(self.dentries[*id as usize].end).filter(within)).map(DentryId)
    }

    /// The last component of a name's path. Empty for the root.
    pub fn name(&self, dentry: DentryId) -> &'a [u8] {
        self.component(dentry).as_bytes()
    }

    /// As [`Tree::name`], as a part of a path.
    pub(crate) fn component(&self, dentry: DentryId) -> Component<'a> {
        self.dentries[dentry.index()].name()
    }

    /// The directory that contains a name. The root contains itself.
    pub fn parent(&self, dentry: DentryId) -> DentryId {
        DentryId(self.dentries[dentry.index()].parent)
    }

    /// The path of a name from the root, without a leading slash.
    pub fn path(&self, dentry: DentryId) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = dentry;
        while at != self.root() {
            names.push(self.name(at));
            at = self.parent(at);
        }
        names.reverse();
        names.join(&b'/')
    }

    /// The inode of a name.
    pub fn inode(&self, dentry: DentryId) -> &Inode<'a> {
        &self.inodes[self.inode_number(dentry)]
    }

    /// All inodes, in the order of their first names.
    pub fn inodes(&self) -> impl ExactSizeIterator<Item = &Inode<'a>> {
        self.inodes.iter()
    }

    /// The number of a name's inode: equal for the names of one hard-linked file, counted in pre-order from 0.
    pub(crate) fn inode_number(&self, dentry: DentryId) -> usize {
        self.dentries[dentry.index()].inode as usize
    }

    /// The name at `path`. Empty components are skipped. `.` and `..` are ordinary names. Links are not followed.
    pub fn lookup(&self, path: &[u8]) -> Option<DentryId> {
        path.split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
            .try_fold(self.root(), |directory, name| self.children(directory).find(|child| self.name(*child) == name))
    }

    /// The contents of all files that are not empty, each once, ascending by object.
    pub fn objects(&self) -> impl ExactSizeIterator<Item = Object> {
        self.objects.iter().map(|number| {
            object_of(&self.inodes[*number]).expect("only inodes with an object stand for one: see `representatives`")
        })
    }

    /// Xattrs that were omitted because images may not set them or EROFS cannot represent them, in the layers and here.
    pub fn dropped_xattrs(&self) -> u64 {
        self.dropped_xattrs
    }

    /// Returns the sizes of the tree.
    pub fn counts(&self) -> Counts {
        let mut counts =
            Counts { names: self.dentries.len() as u64, inodes: self.inodes.len() as u64, ..Counts::default() };
        for inode in &self.inodes {
            match inode.kind() {
                Kind::Directory => counts.directories += 1,
                Kind::File => counts.files += 1,
                Kind::Symlink => counts.symlinks += 1,
                Kind::CharDevice | Kind::BlockDevice | Kind::Fifo => counts.specials += 1,
            }
            if inode.kind() == Kind::File {
                counts.file_bytes = counts.file_bytes.saturating_add(inode.size());
            }
        }
        counts
    }

    /// All properties of the tree, one [`Line`] per name.
    pub fn dump(&self) -> String {
        let mut first_names: Vec<Option<Vec<u8>>> = vec![None; self.inodes.len()];
        let mut text = String::new();
        for dentry in self.walk() {
            let path = self.path(dentry);
            let inode = self.inode(dentry);
            let first = &mut first_names[self.inode_number(dentry)];
            let line = Line {
                path: &path,
                kind: inode.kind(),
                mode: inode.attributes().mode & 0o7777,
                uid: inode.attributes().uid,
                gid: inode.attributes().gid,
                size: inode.size(),
                mtime: inode.attributes().mtime,
                links: inode.links(),
                target: inode.target(),
                device: inode.device(),
                object: inode.object().map(|object| object.id),
                xattrs: inode.xattrs().map(|xattr| (xattr.name.to_vec(), &*xattr.value)).collect(),
                same_as: first.as_deref(),
            };
            writeln!(text, "{line}").expect("a String takes everything");
            first.get_or_insert(path);
        }
        text
    }
}

/// Counts directories as file systems do: `.`, the name in the parent, and `..` of each subdirectory.
pub(crate) fn count_subdirectories(dentries: &[Dentry<'_>], inodes: &mut [Inode<'_>]) {
    for dentry in dentries {
        let inode = &mut inodes[dentry.inode as usize];
        if !matches!(inode.node(), Node::Directory) {
            continue;
        }
        inode.links += 1;
        if !dentry.name().as_bytes().is_empty() {
            let parent = dentries[dentry.parent as usize].inode;
            inodes[parent as usize].links += 1;
        }
    }
}

/// Sums the xattrs that the layers dropped and those that the tree does not keep.
pub(crate) fn count_dropped(layers: &[LayerIndex], inodes: &[Inode<'_>]) -> u64 {
    let by_readers = layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.dropped_xattrs));
    let here: u64 = inodes.iter().map(|inode| (inode.attributes().xattrs.len() - inode.xattrs().count()) as u64).sum();
    by_readers.saturating_add(here)
}
