//! [`Nodes`]: the node ids of a tree, and of the tree that replaces it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tarpon_fs::{Attr, Kind, NodeId};
use tarpon_layer::Timestamp;
use tarpon_oci::Digest;

use super::item::{Directory, Item};
use crate::layer_numbers::{Diff, LayerNumbers, outward};

/// Maximum number of replaced files kept for open readers: a reader of one takes milliseconds.
const OLD_FILES: usize = 64;

/// Identifies a layer for every server. The content is part of it: a layer that another version of this program made
/// again from the same image may have other node ids, and is another layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct LayerIdentity {
    /// Its id in Podman's stores.
    pub(crate) id: Digest,
    /// [`DiffFs::digest`](crate::diff_fs::DiffFs::digest).
    pub(crate) content: Digest,
}

/// The nodes of a tree.
#[derive(Default)]
pub(super) struct Nodes {
    pub(super) nodes: HashMap<u64, Node>,
    /// The last issued node id.
    pub(super) last: u64,
    /// Files without a name.
    pub(super) old: VecDeque<(u64, Node)>,
    pub(super) layers: LayerNumbers<LayerIdentity>,
}

#[derive(Clone)]
pub(super) struct Node {
    pub(super) parent: u64,
    pub(super) mtime: Timestamp,
    pub(super) what: What,
}

#[derive(Clone)]
pub(super) enum What {
    Directory { uid: u32, gid: u32, names: BTreeMap<String, u64> },
    File(FileContent),
    Link(String),
}

/// The content of a file.
#[derive(Clone)]
pub(super) struct FileContent {
    pub(super) digest: Digest,
    /// `None`: an earlier server had them, and this one has not set a tree yet.
    pub(super) bytes: Option<Bytes>,
}

impl FileContent {
    fn new(bytes: Bytes) -> Self {
        Self { digest: Digest::of(&bytes), bytes: Some(bytes) }
    }

    fn is(&self, bytes: &Bytes) -> bool {
        match &self.bytes {
            Some(own) => own == bytes,
            None => self.digest == Digest::of(bytes),
        }
    }
}

impl Node {
    pub(super) fn attr(&self, node: u64) -> Attr {
        let (kind, mode, size) = match &self.what {
            What::Directory { .. } => (Kind::Directory, 0o755, 0),
            What::File(content) => (Kind::File, 0o644, content.bytes.as_ref().map_or(0, Bytes::len) as u64),
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

impl Nodes {
    /// No nodes, not even that of the root.
    pub(super) fn empty() -> Self {
        Self { last: NodeId::ROOT.0, ..Self::default() }
    }

    /// The node with this id.
    pub(super) fn get(&self, node: u64) -> Option<&Node> {
        let old = || self.old.iter().find(|(id, _)| *id == node).map(|(_, node)| node);
        self.nodes.get(&node).or_else(old)
    }

    /// The nodes of `root`. Directories with the same path stay the same nodes, as do unchanged files and links.
    pub(super) fn next(&self, root: Directory, now: Timestamp) -> Self {
        let next = Self { nodes: HashMap::new(), last: self.last, old: self.old.clone(), layers: self.layers.clone() };
        let mut change = Change { next, before: &self.nodes, now };
        change.directory(NodeId::ROOT.0, NodeId::ROOT.0, root);
        let Self { nodes, last, mut old, layers } = change.next;
        let is_old = |id: &u64, node: &Node| match &node.what {
            // Without its bytes, a file of an earlier server is lost.
            What::File(content) => content.bytes.is_some() && !nodes.contains_key(id),
            _ => false,
        };
        let files = self.nodes.iter().filter(|(id, node)| is_old(id, node));
        old.extend(files.map(|(id, node)| (*id, node.clone())));
        let surplus = old.len().saturating_sub(OLD_FILES);
        old.drain(..surplus);
        Self { nodes, last, old, layers }
    }
}

/// One replacement of the tree.
struct Change<'b> {
    next: Nodes,
    before: &'b HashMap<u64, Node>,
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
        self.next.nodes.insert(id, Node { parent, mtime, what });
    }

    /// Puts an item into the directory `parent`, in place of the node `known`. `None`: the node ids are exhausted.
    fn item(&mut self, parent: u64, known: Option<u64>, item: Item) -> Option<u64> {
        let before = self.before;
        let known = known.and_then(|id| Some((id, before.get(&id)?)));
        match item {
            Item::Layer { id, diff } => self.layer(id, &diff),
            Item::Directory(directory) => {
                let same = known.filter(|(_, node)| matches!(node.what, What::Directory { .. }));
                let id = same.map_or_else(|| self.issue(), |(id, _)| id);
                self.directory(id, parent, directory);
                Some(id)
            }
            Item::File(bytes) => {
                let same = known.and_then(|(id, node)| match &node.what {
                    What::File(old) if old.is(&bytes) => Some((id, node, old.digest)),
                    _ => None,
                });
                let content = match same {
                    Some((.., digest)) => FileContent { digest, bytes: Some(bytes) },
                    None => FileContent::new(bytes),
                };
                Some(self.leaf(parent, same.map(|(id, node, _)| (id, node)), What::File(content)))
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
            None => (self.issue(), self.now),
        };
        self.next.nodes.insert(id, Node { parent, mtime, what });
        id
    }

    fn layer(&mut self, id: Digest, diff: &Diff) -> Option<u64> {
        let identity = LayerIdentity { id, content: diff.digest() };
        let number = self.next.layers.number(&identity, diff)?;
        Some(outward(number, NodeId::ROOT).0)
    }

    fn issue(&mut self) -> u64 {
        self.next.last += 1;
        self.next.last
    }
}
