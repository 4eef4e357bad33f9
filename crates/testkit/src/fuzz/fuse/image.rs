//! An image in mode `fuse`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::io::Errno;
use tarpon_fs::ImageFs;

use super::Input;
use super::kernel::{Answer, Attributes, FLUSH, Kernel, Listed, OPEN, OPENDIR, READLINK, RELEASE, ROOT};
use super::tree::{self, Kind, Memory, Tree};

/// Requests of one input.
const REQUESTS: usize = 100;
/// Sizes of listings with room for the longest entry of READDIRPLUS.
const ROOMS: [u32; 4] = [512, 600, 4_096, 65_536];
/// `FOPEN_KEEP_CACHE` and `FOPEN_NOFLUSH`.
const CACHED: u32 = 1 << 1 | 1 << 5;
/// Requests of changes (MKDIR, UNLINK, RMDIR, REMOVEXATTR, MKNOD, CREATE), and the bytes before the name in their bodies.
const CHANGES: [(u32, usize); 6] = [(9, 8), (10, 0), (11, 0), (24, 0), (8, 16), (35, 16)];

pub(in super::super) fn run(mut input: Input<'_>, options: u8) {
    let tree = Tree::from_input(&mut input);
    let files = ImageFs::new(tree.image()).expect("a sound image");
    let objects = Memory { contents: tree.contents(), local: options >> 1 };
    let sees_opens = options & 1 != 0;
    let kernel = Kernel::new(Arc::new(files), Arc::new(objects), sees_opens);
    let mut mounted = Mounted { tree, kernel, sees_opens, ids: BTreeMap::from([(0, ROOT)]) };
    for _ in 0..REQUESTS {
        let Some(request) = input.byte() else { break };
        mounted.request(request, &mut input);
    }
    mounted.kernel.end();
}

struct Mounted {
    tree: Tree,
    kernel: Kernel,
    sees_opens: bool,
    /// The node ids that the kernel knows, by inode.
    ids: BTreeMap<usize, u64>,
}

impl Mounted {
    /// The id of a name's inode, looked up if it is not known.
    fn id(&mut self, name: usize) -> u64 {
        let inode = self.tree.names[name].inode;
        match self.ids.get(&inode) {
            Some(id) => *id,
            None => self.look_up(name),
        }
    }

    fn look_up(&mut self, name: usize) -> u64 {
        if name == 0 {
            return ROOT;
        }
        let parent = self.id(self.tree.names[name].parent);
        let found = self.kernel.look_up(parent, &self.tree.names[name].name.clone());
        let found = found.expect("a directory").expect("the name exists");
        self.check(name, &found);
        found.inode
    }

    /// Compares the attributes of a name's inode.
    fn check(&mut self, name: usize, found: &Attributes) {
        let number = self.tree.names[name].inode;
        let id = *self.ids.entry(number).or_insert(found.inode);
        let inode = &self.tree.inodes[number];
        let size = inode.size().map_or(found.size, |size| size as u64);
        let device = match inode.kind {
            // The kernel's `new_encode_dev`.
            Kind::CharDevice(major, minor) | Kind::BlockDevice(major, minor) => {
                (minor & 0xff) | major << 8 | (minor & !0xff) << 12
            }
            _ => 0,
        };
        let expected = Attributes {
            inode: id,
            size,
            blocks: size.div_ceil(512),
            mtime: (inode.mtime.0.cast_unsigned(), inode.mtime.1),
            mode: inode.full_mode(),
            links: u32::try_from(self.tree.links(name)).expect("few"),
            owner: inode.owner,
            device,
        };
        // The root is not in the layer: its attributes are those that the merge implies.
        let root = Attributes { mtime: found.mtime, ..expected.clone() };
        assert_eq!(*found, if name == 0 { root } else { expected });
    }

    fn request(&mut self, request: u8, input: &mut Input<'_>) {
        let name = input.choice(self.tree.names.len());
        let node = self.id(name);
        match request % 16 {
            0 => self.check_missing(name, node, &tree::name(input)),
            1 => drop(self.look_up(name)),
            2 => {
                let found = self.kernel.attributes(node).expect("a known inode");
                self.check(name, &found);
            }
            3 => {
                let expected = match &self.inode(name).kind {
                    Kind::Symlink(target) => Ok(target.clone()),
                    _ => Err(Errno::INVAL),
                };
                assert_eq!(self.kernel.ask(READLINK, node, &[]), expected);
            }
            4 => self.check_read(name, node, input.number(), input.number()),
            5 => self.check_listing(name, node, input.pick(&ROOMS), false),
            6 => self.check_listing(name, node, input.pick(&ROOMS), true),
            7 => {
                self.check_xattr(name, node, input.pick(&[&b"user.a"[..], b"user.\xff", b"user.empty", b"user.", b""]))
            }
            8 => {
                let names: Vec<u8> =
                    self.inode(name).xattrs.keys().flat_map(|name| [&name[..], &[0]].concat()).collect();
                let sorted = |names: &[u8]| {
                    let mut names: Vec<Vec<u8>> = names.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
                    names.sort();
                    names
                };
                let listed = self.kernel.xattr(node, None).expect("the list can always be read");
                assert_eq!(sorted(&listed), sorted(&names));
            }
            9 => assert_eq!(self.kernel.inodes(), self.tree.inodes.len() as u64),
            10 => self.kernel.forget(node, input.number(), request & 16 != 0),
            11 => self.check_open(name, node),
            12 => self.check_changes(node, input),
            13 => {
                // A known inode, or one that was never issued.
                let node = if request & 16 == 0 { node } else { input.number() };
                self.kernel.send_arbitrary(input, node);
            }
            14 => {
                let size = u32::try_from(input.number()).unwrap_or(u32::MAX);
                let listed = self.kernel.list(node, input.number(), size, request & 16 != 0);
                assert_eq!(listed.is_ok(), self.tree.is_directory(name), "a part of a listing from anywhere");
            }
            _ => {
                assert_eq!(self.kernel.ask(OPENDIR, node, &[0; 8]), Err(Errno::NOSYS));
                assert_eq!(self.kernel.ask(FLUSH, node, &[0; 24]), Err(Errno::NOSYS));
            }
        }
    }

    fn inode(&self, name: usize) -> &tree::Inode {
        &self.tree.inodes[self.tree.names[name].inode]
    }

    /// A name that may exist.
    fn check_missing(&mut self, parent: usize, node: u64, name: &[u8]) {
        let answer = self.kernel.look_up(node, name);
        match (self.tree.is_directory(parent), self.tree.child(parent, name)) {
            (false, _) => assert_eq!(answer, Err(Errno::NOTDIR)),
            (true, None) => assert_eq!(answer, Ok(None)),
            (true, Some(child)) => {
                let found = answer.expect("a directory").expect("the name exists");
                self.check(child, &found);
            }
        }
    }

    fn check_read(&mut self, name: usize, node: u64, offset: u64, size: u64) {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let expected: Answer = match &self.inode(name).kind {
            // The library's check of the kernel's `loff_t`.
            _ if i64::try_from(offset).is_err() => Err(Errno::INVAL),
            Kind::File(content) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
                let end = start.saturating_add(usize::try_from(size).expect("32 bits")).min(content.len());
                Ok(content[start..end].to_vec())
            }
            Kind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        };
        assert!(self.kernel.read(node, offset, size) == expected, "offset {offset}, {size} bytes");
    }

    fn check_listing(&mut self, name: usize, node: u64, size: u32, plus: bool) {
        let listed = self.kernel.list_all(node, size, plus);
        if !self.tree.is_directory(name) {
            assert_eq!(listed.err(), Some(Errno::NOTDIR));
            return;
        }
        let mut listed = listed.expect("a directory");
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        let mut expected: Vec<(Vec<u8>, usize)> =
            self.tree.children(name).into_iter().map(|child| (self.tree.names[child].name.clone(), child)).collect();
        expected.extend([(b".".to_vec(), name), (b"..".to_vec(), self.tree.names[name].parent)]);
        expected.sort();
        let names: Vec<&[u8]> = listed.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(names, expected.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>());
        for (Listed { inode, kind, attributes, .. }, (_, child)) in listed.iter().zip(expected) {
            // As a kernel does, from the attributes that come with the name.
            if let Some(attributes) = attributes {
                self.check(child, attributes);
            }
            assert_eq!(*inode, self.id(child));
            assert_eq!(*kind, self.inode(child).full_mode() & 0o170_000);
        }
    }

    fn check_xattr(&mut self, name: usize, node: u64, xattr: &[u8]) {
        let any = self.tree.inodes.iter().any(|inode| !inode.xattrs.is_empty());
        let expected = match self.inode(name).xattrs.get(xattr) {
            _ if !any => Err(Errno::NOSYS),
            Some(value) => Ok(value.clone()),
            None => Err(Errno::NODATA),
        };
        assert_eq!(self.kernel.xattr(node, Some(xattr)), expected);
    }

    fn check_open(&mut self, name: usize, node: u64) {
        let opened = self.kernel.ask(OPEN, node, &[0; 8]);
        let expected = match &self.inode(name).kind {
            _ if !self.sees_opens => Err(Errno::NOSYS),
            Kind::File(_) => Ok([&[0; 8][..], &CACHED.to_ne_bytes(), &[0; 4]].concat()),
            Kind::Directory => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        };
        assert_eq!(opened, expected);
        // Not always the same inode, so that some stay open.
        let released = self.ids.values().copied().find(|id| id % 2 == node % 2).unwrap_or(node);
        assert_eq!(self.kernel.ask(RELEASE, released, &[0; 24]), Ok(Vec::new()));
    }

    fn check_changes(&mut self, node: u64, input: &mut Input<'_>) {
        let (opcode, before) = input.pick(&CHANGES);
        let body = [&vec![0; before][..], &tree::name(input), &[0]].concat();
        assert_eq!(self.kernel.ask(opcode, node, &body), Err(Errno::ROFS), "opcode {opcode}");
    }
}
