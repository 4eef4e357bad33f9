//! [`Tree`]: the naive model of an image, a list of names. It is small enough to be verified by reading.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use rustix::fs::FileType;
use tarpon_fs::{Errno, Objects};
use tarpon_oci::Digest;

use super::Input;
use crate::entries::{Made, block_device, char_device, dir, fifo, file, layer, link, symlink};

/// Most names of a tree.
const NAMES: usize = 40;
const STEMS: [&[u8]; 5] = [b"a", b"b", b"a-b", b"\xff\n", &[b'n'; 250]];
const SIZES: [usize; 8] = [0, 1, 100, 4_095, 4_096, 5_000, 70_000, 140_000];

/// A name, its directory and its inode, by their places. The first is the root.
pub(super) struct Name {
    pub(super) parent: usize,
    pub(super) name: Vec<u8>,
    pub(super) inode: usize,
}

pub(super) struct Inode {
    pub(super) kind: Kind,
    pub(super) mode: u16,
    pub(super) owner: (u32, u32),
    pub(super) mtime: (i64, u32),
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub(super) enum Kind {
    Directory,
    File(Bytes),
    Symlink(Vec<u8>),
    Fifo,
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
}

pub(super) struct Tree {
    pub(super) names: Vec<Name>,
    pub(super) inodes: Vec<Inode>,
}

impl Tree {
    pub(super) fn from_input(input: &mut Input<'_>) -> Self {
        let mtime = (1_700_000_000, 0);
        let root = Inode { kind: Kind::Directory, mode: 0o755, owner: (0, 0), mtime, xattrs: BTreeMap::new() };
        let mut tree = Self { names: vec![Name { parent: 0, name: Vec::new(), inode: 0 }], inodes: vec![root] };
        for _ in 0..input.choice(NAMES) {
            tree.add(input);
        }
        tree
    }

    fn add(&mut self, input: &mut Input<'_>) {
        let directories: Vec<usize> = (0..self.names.len()).filter(|name| self.is_directory(*name)).collect();
        let parent = input.pick(&directories);
        let name = name(input);
        if self.child(parent, &name).is_some() {
            return;
        }
        let linkable: Vec<usize> = self.names.iter().map(|name| name.inode).collect();
        let linkable: Vec<usize> =
            linkable.into_iter().filter(|inode| !matches!(self.inodes[*inode].kind, Kind::Directory)).collect();
        let sort = input.choice(12);
        let kind = match sort {
            0..=3 => Kind::Directory,
            4..=7 => Kind::File(content(input.pick(&SIZES), input.byte().unwrap_or(0))),
            8 => Kind::Symlink(vec![b't'; input.pick(&[1, 40, 4_000, 4_095])]),
            9 => input.pick(&[0, 1, 2]).into(),
            _ if linkable.is_empty() => Kind::Fifo,
            _ => {
                let inode = input.pick(&linkable);
                self.names.push(Name { parent, name, inode });
                return;
            }
        };
        self.names.push(Name { parent, name, inode: self.inodes.len() });
        self.inodes.push(Inode::new(kind, input.byte().unwrap_or(0)));
    }

    pub(super) fn is_directory(&self, name: usize) -> bool {
        matches!(self.inodes[self.names[name].inode].kind, Kind::Directory)
    }

    pub(super) fn child(&self, parent: usize, name: &[u8]) -> Option<usize> {
        (1..self.names.len()).find(|at| self.names[*at].parent == parent && self.names[*at].name == name)
    }

    pub(super) fn children(&self, parent: usize) -> Vec<usize> {
        (1..self.names.len()).filter(|at| self.names[*at].parent == parent).collect()
    }

    /// The number of links to the inode of a name.
    pub(super) fn links(&self, name: usize) -> usize {
        if self.is_directory(name) {
            return 2 + self.children(name).into_iter().filter(|child| self.is_directory(*child)).count();
        }
        self.names.iter().filter(|other| other.inode == self.names[name].inode).count()
    }

    fn path(&self, name: usize) -> Vec<u8> {
        let Name { parent, name: last, .. } = &self.names[name];
        if *parent == 0 { last.clone() } else { [&self.path(*parent)[..], b"/", last].concat() }
    }

    /// The image of this tree.
    pub(super) fn image(&self) -> Vec<u8> {
        let mut first_names = BTreeMap::new();
        let entries: Vec<Made> = (1..self.names.len())
            .map(|at| {
                let (path, number) = (self.path(at), self.names[at].inode);
                let Some(first) = first_names.get(&number) else {
                    first_names.insert(number, path.clone());
                    return self.inodes[number].entry(&path);
                };
                link(path, first)
            })
            .collect();
        tarpon_tree::erofs::write(&tarpon_tree::merge(&[layer(entries)]).expect("a sound layer"))
    }

    /// The contents of its files, by their digests.
    pub(super) fn contents(&self) -> BTreeMap<Digest, Bytes> {
        let contents = self.inodes.iter().filter_map(|inode| match &inode.kind {
            Kind::File(content) => Some((Digest::of(content), content.clone())),
            _ => None,
        });
        contents.collect()
    }
}

impl From<u8> for Kind {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Fifo,
            1 => Self::CharDevice(4_095, 0xf_ffff),
            _ => Self::BlockDevice(8, 256),
        }
    }
}

impl Inode {
    fn new(kind: Kind, choice: u8) -> Self {
        let id = |bit: u8| if choice & bit == 0 { 0 } else { u32::MAX - 1 };
        let mtime = match choice & 12 {
            0 => (1_700_000_000, 0),
            4 => (-5, 250_000_000),
            8 => (-5, 0),
            _ => (i64::from(u32::MAX) + 1, 999_999_999),
        };
        let mut xattrs = BTreeMap::new();
        // Linux supports `user.*` on files and directories only, and so does the tree.
        if matches!(kind, Kind::File(_) | Kind::Directory) {
            if choice & 16 != 0 {
                xattrs.insert(b"user.a".to_vec(), b"the same everywhere".to_vec());
            }
            if choice & 32 != 0 {
                xattrs.insert(b"user.\xff".to_vec(), vec![choice; 2_000]);
            }
            if choice & 48 == 48 {
                xattrs.insert(b"user.empty".to_vec(), Vec::new());
            }
        }
        Self { kind, mode: u16::from(choice) << 4 | 0o5, owner: (id(1), id(2)), mtime, xattrs }
    }

    fn entry(&self, path: &[u8]) -> Made {
        let made = match &self.kind {
            Kind::Directory => dir(path),
            Kind::File(content) => file(path, content),
            Kind::Symlink(target) => symlink(path, target),
            Kind::Fifo => fifo(path),
            Kind::CharDevice(major, minor) => char_device(path, *major, *minor),
            Kind::BlockDevice(major, minor) => block_device(path, *major, *minor),
        };
        let made = made.mode(self.mode).owner(self.owner.0, self.owner.1).mtime(self.mtime.0, self.mtime.1);
        self.xattrs.iter().fold(made, |made, (name, value)| made.xattr(name, value))
    }

    /// Type and permissions, as in `st_mode`.
    pub(super) fn full_mode(&self) -> u32 {
        let kind = match self.kind {
            Kind::Directory => FileType::Directory,
            Kind::File(_) => FileType::RegularFile,
            Kind::Symlink(_) => FileType::Symlink,
            Kind::Fifo => FileType::Fifo,
            Kind::CharDevice(..) => FileType::CharacterDevice,
            Kind::BlockDevice(..) => FileType::BlockDevice,
        };
        kind.as_raw_mode() | u32::from(self.mode)
    }

    /// The size, but for directories, whose size has no meaning.
    pub(super) fn size(&self) -> Option<usize> {
        match &self.kind {
            Kind::Directory => None,
            Kind::File(content) => Some(content.len()),
            Kind::Symlink(target) => Some(target.len()),
            _ => Some(0),
        }
    }
}

/// One of a few names, so that names collide and some directories have more than one block.
pub(super) fn name(input: &mut Input<'_>) -> Vec<u8> {
    let choice = input.byte().unwrap_or(0);
    let stem = STEMS[usize::from(choice) % STEMS.len()];
    match choice / 5 {
        0 => stem.to_vec(),
        number => [stem, number.to_string().as_bytes()].concat(),
    }
}

fn content(size: usize, seed: u8) -> Bytes {
    let bytes: Vec<u8> = (0..size).map(|at| (at % 251).to_le_bytes()[0] ^ seed).collect();
    bytes.into()
}

/// Contents, of which some are local.
pub(super) struct Memory {
    pub(super) contents: BTreeMap<Digest, Bytes>,
    /// Which are local: those whose digest has this in its last bits.
    pub(super) local: u8,
}

impl Memory {
    fn is_local(&self, object: &Digest) -> bool {
        (object.as_bytes()[31] ^ self.local) & 1 == 0
    }

    fn part(&self, object: &Digest, offset: u64, length: usize) -> Bytes {
        let start = usize::try_from(offset).expect("in the object");
        self.contents[object].slice(start..start + length)
    }
}

impl Objects for Memory {
    fn size(&self, object: &Digest) -> Option<u64> {
        self.contents.get(object).map(|bytes| bytes.len() as u64)
    }

    fn read_local(&self, object: &Digest, offset: u64, length: usize) -> Result<Option<Bytes>, Errno> {
        Ok(self.is_local(object).then(|| self.part(object, offset, length)))
    }

    fn read(&self, object: Digest, offset: u64, length: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
        let part = self.part(&object, offset, length);
        async move { Ok(part) }.boxed()
    }

    fn check_local(&self, object: &Digest) -> Option<BoxFuture<'static, ()>> {
        (object.as_bytes()[30] & 1 == 0).then(|| async {}.boxed())
    }

    fn open_local(&self, object: &Digest) -> Option<Arc<File>> {
        let mut file = self.is_local(object).then(tempfile::tempfile)?.ok()?;
        file.write_all(&self.contents[object]).ok()?;
        Some(Arc::new(file))
    }
}
