//! The file system itself: [`Nodes`] that are replaced while the kernel reads them.

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tarpon_fs::{Attr, Content, DirEntry, Errno, Kind, NodeId, Operations, Take, Totals};
use tarpon_layer::Timestamp;

use super::item::Directory;
use super::nodes::{LayerIdentity, Node, Nodes, What};
use super::saved;
use crate::layer_numbers::{Diff, inward, outward};
use crate::saved_state::{RestoreError, Save};

/// The file system.
pub(crate) struct StoreFs {
    /// Held while the tree is replaced.
    changing: Mutex<()>,
    nodes: RwLock<Nodes>,
    save: Save,
}

/// A node of the tree, or one of a layer.
enum NodeOwner {
    Own(u64),
    Layer { number: u64, node: NodeId },
}

fn place(node: NodeId) -> NodeOwner {
    match inward(node) {
        None => NodeOwner::Own(node.0),
        Some((number, node)) => NodeOwner::Layer { number, node },
    }
}

impl StoreFs {
    /// Creates a file system that shows `root`, and saves what [`StoreFs::restored`] needs.
    pub(crate) fn new(root: Directory, now: Timestamp, save: Save) -> Self {
        Self::with(Nodes::empty(), root, now, save)
    }

    /// Creates the file system whose nodes an earlier server saved, to show `root`. The same names have the same nodes, as after
    /// [`StoreFs::set`]. `layer` finds those that containers may use, with or without names in `root`; all others are stale.
    pub(crate) fn restored(
        saved: &[u8],
        layer: impl Fn(&LayerIdentity) -> Option<Diff>,
        root: Directory,
        now: Timestamp,
        save: Save,
    ) -> Result<Self, RestoreError> {
        let mut nodes = saved::decode(saved)?;
        let found: Vec<_> = nodes.layers.keys().map(layer).collect();
        for (number, diff) in (1..).zip(&found) {
            diff.iter().for_each(|diff| nodes.layers.load(number, diff));
        }
        Ok(Self::with(nodes, root, now, save))
    }

    /// An empty file system that knows none of the nodes that the kernel may ask for.
    pub(crate) fn stale() -> Self {
        Self::new(Directory::default(), Timestamp::default(), Box::new(|_| {}))
    }

    fn with(nodes: Nodes, root: Directory, now: Timestamp, save: Save) -> Self {
        let files = Self { changing: Mutex::default(), nodes: RwLock::new(nodes), save };
        files.set(root, now);
        files
    }

    /// Shows `root` from now on. Directories with the same path stay the same nodes, as do unchanged files and links.
    pub(crate) fn set(&self, root: Directory, now: Timestamp) {
        let _changing = self.changing.lock();
        let next = self.nodes.read().next(root, now);
        // First: a successor that did not know a node could issue its id again.
        (self.save)(&saved::encode(&next));
        *self.nodes.write() = next;
    }

    /// What [`StoreFs::restored`] needs.
    #[cfg(test)]
    pub(crate) fn saved(&self) -> Vec<u8> {
        saved::encode(&self.nodes.read())
    }

    #[cfg(test)]
    pub(super) fn into_nodes(self) -> Nodes {
        self.nodes.into_inner()
    }

    fn own<T>(&self, node: u64, answer: impl FnOnce(&Node) -> Result<T, Errno>) -> Result<T, Errno> {
        answer(self.nodes.read().get(node).ok_or(Errno::Stale)?)
    }

    fn layer(&self, number: u64) -> Result<Diff, Errno> {
        self.nodes.read().layers.get(number).cloned().ok_or(Errno::Stale)
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
                What::File(_) => Ok(Content { object: None, size: own.attr(node).size }),
                What::Directory { .. } => Err(Errno::IsADirectory),
                What::Link(_) => Err(Errno::Invalid),
            }),
            NodeOwner::Layer { number, node } => self.layer(number)?.content(node),
        }
    }

    fn held(&self, node: NodeId) -> Option<Bytes> {
        let NodeOwner::Own(node) = place(node) else { return None };
        let bytes = self.own(node, |own| match &own.what {
            What::File(content) => content.bytes.clone().ok_or(Errno::Stale),
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
        self.nodes.read().layers.totals()
    }
}
