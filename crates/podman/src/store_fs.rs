//! [`StoreFs`]: a directory tree of small files that is replaced as a whole, with immutable layers ([`DiffFs`]) in it.
//!
//! Podman reads it as a store of images. Everything that may change is replaced at once ([`StoreFs::set`]), and the
//! meaning of a node id never changes: a file with other bytes is another node, as if it had been rewritten and renamed
//! over the old one. So an open file always reads as it was, the kernel may keep its pages, and only *names* must be
//! looked up again each time. Directories keep their node ids, which mounts on top of them hold.
//!
//! A layer gets its own range of node ids, and keeps it while the file system lives: containers may use it long after its
//! name is removed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use tarpon_fs::{Attr, Content, DirEntry, Errno, Kind, NodeId, Operations, Take, Totals};
use tarpon_layer::Timestamp;

use super::diff_fs::{DiffFs, NODE_BITS};

/// Maximum number of replaced files kept for open readers: a reader of one takes milliseconds.
const OLD_FILES: usize = 64;
/// Maximum number of layers that fit into a node id.
const LAYERS: usize = (1 << (64 - NODE_BITS)) - 2;

/// The target of a name.
pub(crate) enum Item {
    /// A directory.
    Directory(Directory),
    /// A file with these bytes, mode 0644.
    File(Bytes),
    /// A symbolic link to this target.
    Link(String),
    /// The root of a layer.
    Layer(Arc<DiffFs<Bytes>>),
}

/// A directory of mode 0755, with the names in it.
#[derive(Default)]
pub(crate) struct Directory {
    /// Its owner.
    pub(crate) uid: u32,
    /// Its group.
    pub(crate) gid: u32,
    /// Its content.
    pub(crate) items: BTreeMap<String, Item>,
}

impl Directory {
    /// A directory of root with these entries.
    pub(crate) fn of<const N: usize>(items: [(&str, Item); N]) -> Self {
        Self { uid: 0, gid: 0, items: items.map(|(name, item)| (name.to_owned(), item)).into() }
    }
}

/// The file system.
pub(crate) struct StoreFs {
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    nodes: HashMap<u64, Node>,
    /// The last issued node id.
    last: u64,
    /// Files without a name.
    old: VecDeque<(u64, Node)>,
    layers: Vec<Arc<DiffFs<Bytes>>>,
    /// Numbers of `layers`, by address: they live as long as this value.
    numbers: HashMap<usize, u64>,
}

#[derive(Clone)]
struct Node {
    parent: u64,
    mtime: Timestamp,
    what: What,
}

#[derive(Clone)]
enum What {
    Directory { uid: u32, gid: u32, names: BTreeMap<String, u64> },
    File(Bytes),
    Link(String),
}

impl Node {
    fn attr(&self, node: u64) -> Attr {
        let (kind, mode, size) = match &self.what {
            What::Directory { .. } => (Kind::Directory, 0o755, 0),
            What::File(bytes) => (Kind::File, 0o644, bytes.len() as u64),
            What::Link(target) => (Kind::Symlink, 0o777, target.len() as u64),
        };
        let (uid, gid) = match &self.what {
            What::Directory { uid, gid, .. } => (*uid, *gid),
            _ => (0, 0),
        };
        let links = if kind == Kind::Directory { 2 } else { 1 };
        Attr { node: NodeId(node), kind, mode, links, uid, gid, size, mtime: self.mtime, device: (0, 0) }
    }
}

/// A node of the tree, or one of a layer.
enum NodeOwner {
    Own(u64),
    Layer { number: u64, node: NodeId },
}

fn place(node: NodeId) -> NodeOwner {
    match node.0 >> NODE_BITS {
        0 => NodeOwner::Own(node.0),
        number => NodeOwner::Layer { number, node: NodeId(node.0 & ((1 << NODE_BITS) - 1)) },
    }
}

/// Translates a node id of a layer to the node id here.
fn outward(number: u64, node: NodeId) -> NodeId {
    NodeId(number << NODE_BITS | node.0)
}

impl StoreFs {
    /// Creates a file system that shows `root`.
    pub(crate) fn new(root: Directory, now: Timestamp) -> Self {
        let files = Self { state: RwLock::new(State { last: NodeId::ROOT.0, ..State::default() }) };
        files.set(root, now);
        files
    }

    /// Shows `root` from now on. Directories with the same path stay the same nodes, as do unchanged files and links.
    pub(crate) fn set(&self, root: Directory, now: Timestamp) {
        let mut state = self.state.write();
        let before = std::mem::take(&mut state.nodes);
        let mut change = Change { state: &mut state, before: &before, now };
        change.directory(NodeId::ROOT.0, NodeId::ROOT.0, root);
        for (id, node) in before {
            if matches!(node.what, What::File(_)) && !state.nodes.contains_key(&id) {
                state.old.push_back((id, node));
            }
        }
        let surplus = state.old.len().saturating_sub(OLD_FILES);
        state.old.drain(..surplus);
    }

    fn own<T>(&self, node: u64, answer: impl FnOnce(&Node) -> Result<T, Errno>) -> Result<T, Errno> {
        let state = self.state.read();
        let old = || state.old.iter().find(|(id, _)| *id == node).map(|(_, node)| node);
        answer(state.nodes.get(&node).or_else(old).ok_or(Errno::Stale)?)
    }

    fn layer(&self, number: u64) -> Result<Arc<DiffFs<Bytes>>, Errno> {
        let index = usize::try_from(number - 1).map_err(|_| Errno::Stale)?;
        self.state.read().layers.get(index).cloned().ok_or(Errno::Stale)
    }

    fn lookup_own(&self, parent: u64, name: &[u8]) -> Result<NodeId, Errno> {
        self.own(parent, |node| {
            let What::Directory { names, .. } = &node.what else { return Err(Errno::NotADirectory) };
            let name = std::str::from_utf8(name).map_err(|_| Errno::NotFound)?;
            names.get(name).map(|node| NodeId(*node)).ok_or(Errno::NotFound)
        })
    }

    fn kind(&self, node: NodeId) -> Result<Kind, Errno> {
        match place(node) {
            NodeOwner::Own(node) => self.own(node, |own| Ok(own.attr(node).kind)),
            NodeOwner::Layer { .. } => Ok(Kind::Directory),
        }
    }
}

/// One replacement of the tree.
struct Change<'s> {
    state: &'s mut State,
    before: &'s HashMap<u64, Node>,
    now: Timestamp,
}

impl Change<'_> {
    /// Puts a directory at `id`. The recursion is as deep as the tree that the caller built.
    fn directory(&mut self, id: u64, parent: u64, directory: Directory) {
        let before = self.before;
        let was = before.get(&id).and_then(|node| match &node.what {
            What::Directory { names, .. } => Some((names, node.mtime)),
            _ => None,
        });
        let mut names = BTreeMap::new();
        for (name, item) in directory.items {
            let known = was.and_then(|(names, _)| names.get(&name)).copied();
            if let Some(node) = self.item(id, known, item) {
                names.insert(name, node);
            }
        }
        let mtime = was.filter(|(old, _)| **old == names).map_or(self.now, |(_, mtime)| mtime);
        let what = What::Directory { uid: directory.uid, gid: directory.gid, names };
        self.state.nodes.insert(id, Node { parent, mtime, what });
    }

    /// Puts an item into the directory `parent`, in place of the node `known`. `None`: the node ids are exhausted.
    fn item(&mut self, parent: u64, known: Option<u64>, item: Item) -> Option<u64> {
        let before = self.before;
        let known = known.and_then(|id| Some((id, before.get(&id)?)));
        match item {
            Item::Layer(layer) => self.layer(layer),
            Item::Directory(directory) => {
                let same = known.filter(|(_, node)| matches!(node.what, What::Directory { .. }));
                let id = same.map_or_else(|| self.next(), |(id, _)| id);
                self.directory(id, parent, directory);
                Some(id)
            }
            Item::File(bytes) => {
                let same = known.filter(|(_, node)| matches!(&node.what, What::File(old) if *old == bytes));
                Some(self.leaf(parent, same, What::File(bytes)))
            }
            Item::Link(target) => {
                let same = known.filter(|(_, node)| matches!(&node.what, What::Link(old) if *old == target));
                Some(self.leaf(parent, same, What::Link(target)))
            }
        }
    }

    fn leaf(&mut self, parent: u64, same: Option<(u64, &Node)>, what: What) -> u64 {
        let (id, mtime) = match same {
            Some((id, node)) => (id, node.mtime),
            None => (self.next(), self.now),
        };
        self.state.nodes.insert(id, Node { parent, mtime, what });
        id
    }

    fn layer(&mut self, layer: Arc<DiffFs<Bytes>>) -> Option<u64> {
        let address = Arc::as_ptr(&layer).addr();
        let number = match self.state.numbers.get(&address) {
            Some(number) => *number,
            None if self.state.layers.len() >= LAYERS => return None,
            None => {
                self.state.layers.push(layer);
                let number = self.state.layers.len() as u64;
                self.state.numbers.insert(address, number);
                number
            }
        };
        Some(outward(number, NodeId::ROOT).0)
    }

    fn next(&mut self) -> u64 {
        self.state.last += 1;
        self.state.last
    }
}

impl Operations for StoreFs {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr, Errno> {
        match place(parent) {
            NodeOwner::Own(parent) => self.attributes(self.lookup_own(parent, name)?),
            NodeOwner::Layer { number, node } => {
                let attr = self.layer(number)?.lookup(node, name)?;
                Ok(Attr { node: outward(number, attr.node), ..attr })
            }
        }
    }

    fn attributes(&self, node: NodeId) -> Result<Attr, Errno> {
        match place(node) {
            NodeOwner::Own(node) => self.own(node, |own| Ok(own.attr(node))),
            NodeOwner::Layer { number, node } => {
                let attr = self.layer(number)?.attributes(node)?;
                Ok(Attr { node: outward(number, attr.node), ..attr })
            }
        }
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        match place(node) {
            NodeOwner::Own(node) => self.own(node, |own| match &own.what {
                What::Link(target) => Ok(target.as_bytes().to_vec()),
                _ => Err(Errno::Invalid),
            }),
            NodeOwner::Layer { number, node } => self.layer(number)?.read_link(node),
        }
    }

    fn read_dir(&self, node: NodeId, position: u64, take: &mut dyn FnMut(DirEntry<'_>) -> Take) -> Result<(), Errno> {
        let own = match place(node) {
            NodeOwner::Own(own) => own,
            NodeOwner::Layer { number, node } => {
                return self.layer(number)?.read_dir(node, position, &mut |entry| {
                    take(DirEntry { node: outward(number, entry.node), ..entry })
                });
            }
        };
        let (parent, names) = self.own(own, |own| match &own.what {
            What::Directory { names, .. } => Ok((own.parent, names.clone())),
            _ => Err(Errno::NotADirectory),
        })?;
        let dots = [(".", own), ("..", parent)].map(|(name, node)| (name, NodeId(node)));
        let all = dots.into_iter().chain(names.iter().map(|(name, node)| (name.as_str(), NodeId(*node))));
        for (index, (name, node)) in (0_u64..).zip(all).skip_while(|(index, _)| *index < position) {
            let kind = self.kind(node)?;
            if take(DirEntry { name: name.as_bytes(), node, kind, next: index + 1 }) == Take::Enough {
                break;
            }
        }
        Ok(())
    }

    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        match place(node) {
            NodeOwner::Own(_) => Err(Errno::NoAttribute),
            NodeOwner::Layer { number, node } => self.layer(number)?.xattr(node, name),
        }
    }

    fn xattr_names(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        match place(node) {
            NodeOwner::Own(_) => Ok(Vec::new()),
            NodeOwner::Layer { number, node } => self.layer(number)?.xattr_names(node),
        }
    }

    fn has_xattrs(&self) -> bool {
        true
    }

    fn content(&self, node: NodeId) -> Result<Content, Errno> {
        match place(node) {
            NodeOwner::Own(node) => self.own(node, |own| match &own.what {
                What::File(bytes) => Ok(Content { object: None, size: bytes.len() as u64 }),
                What::Directory { .. } => Err(Errno::IsADirectory),
                What::Link(_) => Err(Errno::Invalid),
            }),
            NodeOwner::Layer { number, node } => self.layer(number)?.content(node),
        }
    }

    fn held(&self, node: NodeId) -> Option<Bytes> {
        let NodeOwner::Own(node) = place(node) else { return None };
        let bytes = self.own(node, |own| match &own.what {
            What::File(bytes) => Ok(bytes.clone()),
            _ => Err(Errno::Invalid),
        });
        bytes.ok()
    }

    fn forget(&self, _: NodeId, _: u64) {}

    fn names_may_appear(&self) -> bool {
        false
    }

    fn lasts(&self, node: NodeId) -> bool {
        match place(node) {
            NodeOwner::Own(_) => false,
            NodeOwner::Layer { .. } => true,
        }
    }

    fn lists_change(&self) -> bool {
        true
    }

    fn has_access_lists(&self) -> bool {
        false
    }

    fn totals(&self) -> Totals {
        let state = self.state.read();
        let layers = state.layers.iter().map(|layer| layer.totals());
        layers.fold(Totals::default(), |sum, layer| Totals {
            bytes: sum.bytes.saturating_add(layer.bytes),
            inodes: sum.inodes.saturating_add(layer.inodes),
        })
    }
}

#[cfg(test)]
mod tests {
    use tarpon_testkit::entries::{dir, file, layer};

    use super::*;

    const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };
    const LATER: Timestamp = Timestamp { seconds: 2, nanoseconds: 0 };

    fn text(content: &str) -> Item {
        Item::File(Bytes::copy_from_slice(content.as_bytes()))
    }

    fn a_layer() -> Arc<DiffFs<Bytes>> {
        let layers = [layer([dir("etc"), file("etc/f", "abc")])];
        let tree = tarpon_tree::erofs::write(&tarpon_tree::merge(&layers).unwrap());
        Arc::new(DiffFs::merged(Bytes::from(tree), [Box::from(&b"old"[..])]).unwrap())
    }

    fn find(files: &StoreFs, path: &str) -> Result<Attr, Errno> {
        path.split('/').try_fold(files.attributes(NodeId::ROOT)?, |at, name| files.lookup(at.node, name.as_bytes()))
    }

    fn names(files: &StoreFs, node: NodeId) -> Vec<String> {
        let (mut names, mut position) = (Vec::new(), 0);
        loop {
            // One at a time, to resume at every position.
            let mut found = None;
            files
                .read_dir(node, position, &mut |entry| match found {
                    Some(_) => Take::Enough,
                    None => {
                        let name = String::from_utf8(entry.name.to_vec()).unwrap();
                        found = Some((name, entry.next));
                        Take::More
                    }
                })
                .unwrap();
            match found {
                Some((name, next)) => {
                    names.push(name);
                    position = next;
                }
                None => return names,
            }
        }
    }

    #[test]
    fn a_file_that_changed_is_another_file_and_the_old_one_stays_readable() {
        let files = StoreFs::new(Directory::of([("a", text("one")), ("b", text("same"))]), NOW);
        let (old, same) = (find(&files, "a").unwrap(), find(&files, "b").unwrap());
        files.set(Directory::of([("a", text("two")), ("b", text("same"))]), LATER);
        let new = find(&files, "a").unwrap();
        assert_ne!(new.node, old.node);
        assert_eq!((files.held(old.node).unwrap(), files.held(new.node).unwrap()), ("one".into(), "two".into()));
        assert_eq!((find(&files, "b").unwrap(), new.mtime), (same, LATER));
        for number in 0..OLD_FILES {
            files.set(Directory::of([("a", text(&number.to_string()))]), LATER);
        }
        assert_eq!(files.attributes(old.node), Err(Errno::Stale), "not for ever");
    }

    #[test]
    fn directories_keep_their_nodes_and_change_their_time_with_their_names() {
        let inner = |item| Directory::of([("d", Item::Directory(item))]);
        let files = StoreFs::new(inner(Directory { uid: 5, gid: 6, ..Directory::of([("x", text("1"))]) }), NOW);
        let before = find(&files, "d").unwrap();
        assert_eq!((before.uid, before.gid, before.mode), (5, 6, 0o755));
        files.set(inner(Directory::of([("x", text("1")), ("y", text("2"))])), LATER);
        let after = find(&files, "d").unwrap();
        assert_eq!((after.node, before.mtime, after.mtime), (before.node, NOW, LATER));
        assert_eq!(names(&files, after.node), [".", "..", "x", "y"]);
        assert!(!files.lasts(after.node) && !files.lasts(NodeId::ROOT));
    }

    #[test]
    fn a_layer_is_a_directory_and_lives_on_when_its_name_is_gone() {
        let diff = a_layer();
        let files = StoreFs::new(Directory::of([("diff", Item::Layer(diff.clone())), ("f", text(""))]), NOW);
        let file = find(&files, "diff/etc/f").unwrap();
        assert_eq!((file.size, file.kind), (3, Kind::File));
        assert!(files.lasts(file.node) && files.held(file.node).is_none());
        assert!(files.content(file.node).unwrap().object.is_some());
        let etc = find(&files, "diff/etc").unwrap();
        assert_eq!(files.xattr(etc.node, b"trusted.overlay.opaque").unwrap(), b"y");
        let root = find(&files, "diff").unwrap().node;
        assert_eq!(names(&files, root), [".", "..", "etc", "old"]);
        assert_eq!(find(&files, "diff/old").unwrap().kind, Kind::CharDevice);
        files.set(Directory::default(), LATER);
        assert_eq!(find(&files, "diff"), Err(Errno::NotFound));
        assert_eq!(files.attributes(file.node), Ok(file));
        files.set(Directory::of([("again", Item::Layer(diff))]), LATER);
        assert_eq!(find(&files, "again").unwrap().node, root, "one layer is one file system");
    }

    #[test]
    fn links_lead_where_they_say_and_nothing_else_does() {
        let files = StoreFs::new(Directory::of([("l", Item::Link("../a/diff".to_owned())), ("f", text("x"))]), NOW);
        let link = find(&files, "l").unwrap();
        assert_eq!((link.kind, files.read_link(link.node).unwrap()), (Kind::Symlink, b"../a/diff".to_vec()));
        assert_eq!(files.read_link(NodeId::ROOT), Err(Errno::Invalid));
        assert_eq!(find(&files, "f/x"), Err(Errno::NotADirectory));
        assert_eq!(files.content(NodeId::ROOT), Err(Errno::IsADirectory));
        for stranger in [NodeId(99), NodeId(7 << NODE_BITS | 1)] {
            assert_eq!(files.attributes(stranger), Err(Errno::Stale));
        }
    }
}
