//! The file system itself: answers for the nodes of its directories, their files and the layers.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tarpon_fs::{Attempt, Attr, Content, DirEntry, Errno, Kind, NodeId, Operations, Take, Totals};
use tarpon_layer::Timestamp;
use tarpon_oci::Reference;

use super::layers::{LayerKey, Layers, ShownLayer, Use};
use super::nodes::{NODES, Nodes, What};
use crate::layer_numbers::{Diff, inward, outward};
use crate::saved_state::{RestoreError, Save};

/// Offsets of the files' ids from the first, which is the layer's directory.
const INFO: u64 = 1;
const BLOB: u64 = 2;

/// The file system.
pub(crate) struct LayerStoreFs {
    layers: Arc<dyn Layers>,
    pub(super) nodes: Mutex<Nodes>,
    since: Timestamp,
    save: Save,
}

/// Location of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    Root,
    /// A directory with this number, or a file in it.
    Own {
        directory: u64,
        file: u64,
    },
    Diff {
        number: u64,
        node: NodeId,
    },
}

fn place(node: NodeId) -> Location {
    match inward(node) {
        Some((number, node)) => Location::Diff { number, node },
        None if node == NodeId::ROOT => Location::Root,
        None => Location::Own { directory: node.0 / NODES, file: node.0 % NODES },
    }
}

fn attr_of(number: u64, attr: Attr) -> Attr {
    Attr { node: outward(number, attr.node), ..attr }
}

/// The image that a directory's name encodes. Names that are no reference cause no queries.
fn image(name: &[u8]) -> Option<Reference> {
    let text = String::from_utf8(BASE64_STANDARD.decode(name).ok()?).ok()?;
    text.parse().ok()
}

impl LayerStoreFs {
    /// Creates a file system that shows `layers`. `since`: the time of its own directories and files. `save` gets what
    /// [`LayerStoreFs::restored`] needs.
    pub(crate) fn new(layers: Arc<dyn Layers>, since: Timestamp, save: Save) -> Self {
        Self::with(Nodes::empty(since), layers, save)
    }

    /// Creates the file system whose nodes an earlier server saved. Layers are loaded when they are read; those that are not
    /// found in `layers` are stale.
    pub(crate) fn restored(saved: &[u8], layers: Arc<dyn Layers>, save: Save) -> Result<Self, RestoreError> {
        Ok(Self::with(Nodes::restored(saved)?, layers, save))
    }

    fn with(nodes: Nodes, layers: Arc<dyn Layers>, save: Save) -> Self {
        save(nodes.saved());
        Self { layers, since: nodes.since(), nodes: Mutex::new(nodes), save }
    }

    /// What [`LayerStoreFs::restored`] needs.
    #[cfg(test)]
    pub(crate) fn saved(&self) -> Vec<u8> {
        self.nodes.lock().saved().to_vec()
    }

    fn attr(&self, node: NodeId, kind: Kind, size: u64) -> Attr {
        let (mode, links) = if kind == Kind::Directory { (0o755, 2) } else { (0o444, 1) };
        Attr { node, kind, mode, links, uid: 0, gid: 0, size, mtime: self.since, device: (0, 0) }
    }

    fn what(&self, directory: u64) -> Result<What, Errno> {
        self.nodes.lock().directories.get(&directory).map(|named| named.what.clone()).ok_or(Errno::Stale)
    }

    /// The layer of this directory.
    fn key(&self, directory: u64) -> Result<LayerKey, Errno> {
        match self.what(directory)? {
            What::Layer(key) => Ok(key),
            What::Image(_) => Err(Errno::NotFound),
        }
    }

    fn shown(&self, directory: u64) -> Result<(LayerKey, ShownLayer), Errno> {
        let key = self.key(directory)?;
        let shown = self.layers.get(&key).ok_or(Errno::NotFound)?;
        Ok((key, shown))
    }

    /// Looks up a directory in the root or in that of an image.
    fn lookup_directory(&self, parent: u64, name: &[u8], what: impl FnOnce() -> Option<What>) -> Result<Attr, Errno> {
        let mut nodes = self.nodes.lock();
        let known = nodes.names.get(&(parent, Box::from(name))).copied();
        let directory = match known {
            Some(directory) => directory,
            None => {
                let directory = nodes.add(parent, name, what().ok_or(Errno::NotFound)?)?;
                (self.save)(nodes.saved());
                directory
            }
        };
        nodes.refer(directory)?;
        Ok(self.attr(NodeId(directory * NODES), Kind::Directory, 0))
    }

    /// Looks up a name in a layer's directory.
    fn lookup_file(&self, directory: u64, name: &[u8]) -> Result<Attr, Errno> {
        let (key, shown) = self.shown(directory)?;
        let own = |file: u64, size: u64| self.attr(NodeId(directory * NODES + file), Kind::File, size);
        let mut nodes = self.nodes.lock();
        let attr = match name {
            b"info" => own(INFO, shown.info.len() as u64),
            b"blob" => own(BLOB, shown.blob_size),
            b"diff" => {
                let (number, is_new) = nodes.number(key, &shown.diff)?;
                if is_new {
                    (self.save)(nodes.saved());
                }
                return Ok(attr_of(number, shown.diff.attributes(NodeId::ROOT)?));
            }
            _ => return Err(Errno::NotFound),
        };
        nodes.refer(directory)?;
        Ok(attr)
    }

    fn diff(&self, number: u64) -> Result<Diff, Errno> {
        let (key, content) = {
            let nodes = self.nodes.lock();
            if let Some(diff) = nodes.layers.get(number) {
                return Ok(diff.clone());
            }
            nodes.layers.key(number).cloned().ok_or(Errno::Stale)?
        };
        let diff = self.layers.with_content(&key, &content).ok_or(Errno::Stale)?;
        self.nodes.lock().layers.load(number, &diff);
        Ok(diff)
    }

    /// The names that can be listed: those of a layer's directory. Only registries know the others.
    fn listing(&self, node: NodeId) -> Result<Vec<(&'static str, Attr)>, Errno> {
        let directory = |node| self.attr(node, Kind::Directory, 0);
        let dots = |parent: NodeId| vec![(".", directory(node)), ("..", directory(parent))];
        let number = match place(node) {
            Location::Root => return Ok(dots(NodeId::ROOT)),
            Location::Own { directory, file: 0 } => directory,
            _ => return Err(Errno::NotADirectory),
        };
        let parent = self.nodes.lock().directories.get(&number).map(|named| named.parent).ok_or(Errno::Stale)?;
        Ok(dots(if parent == 0 { NodeId::ROOT } else { NodeId(parent * NODES) }))
    }
}

impl Operations for LayerStoreFs {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr, Errno> {
        match place(parent) {
            Location::Root => self.lookup_directory(0, name, || image(name).map(What::Image)),
            Location::Own { directory, file: 0 } => match self.what(directory)? {
                What::Layer(_) => self.lookup_file(directory, name),
                What::Image(image) => self.lookup_directory(directory, name, || {
                    let digest = std::str::from_utf8(name).ok()?.parse().ok()?;
                    Some(What::Layer(LayerKey { image, digest }))
                }),
            },
            Location::Own { .. } => Err(Errno::NotADirectory),
            Location::Diff { number, node } => Ok(attr_of(number, self.diff(number)?.lookup(node, name)?)),
        }
    }

    fn before_lookup(&self, parent: NodeId, name: &[u8]) -> Option<BoxFuture<'static, ()>> {
        let Location::Own { directory, file: 0 } = place(parent) else { return None };
        let key = self.key(directory).ok().filter(|_| matches!(name, b"diff" | b"info" | b"blob"))?;
        self.layers.get(&key).is_none().then(|| self.layers.find(&key))
    }

    fn attributes(&self, node: NodeId) -> Result<Attr, Errno> {
        match place(node) {
            Location::Root => Ok(self.attr(node, Kind::Directory, 0)),
            Location::Own { directory, file: 0 } => self.what(directory).map(|_| self.attr(node, Kind::Directory, 0)),
            Location::Own { directory, file } => {
                let (_, shown) = self.shown(directory)?;
                let size = if file == INFO { shown.info.len() as u64 } else { shown.blob_size };
                Ok(self.attr(node, Kind::File, size))
            }
            Location::Diff { number, node } => Ok(attr_of(number, self.diff(number)?.attributes(node)?)),
        }
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        match place(node) {
            Location::Diff { number, node } => self.diff(number)?.read_link(node),
            _ => Err(Errno::Invalid),
        }
    }

    fn read_dir(&self, node: NodeId, position: u64, take: &mut dyn FnMut(DirEntry<'_>) -> Take) -> Result<(), Errno> {
        if let Location::Diff { number, node } = place(node) {
            return self
                .diff(number)?
                .read_dir(node, position, &mut |entry| take(DirEntry { node: outward(number, entry.node), ..entry }));
        }
        let listing = self.listing(node)?;
        for (index, (name, attr)) in (0_u64..).zip(&listing).skip_while(|(index, _)| *index < position) {
            let entry = DirEntry { name: name.as_bytes(), node: attr.node, kind: attr.kind, next: index + 1 };
            if take(entry) == Take::Enough {
                break;
            }
        }
        Ok(())
    }

    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        match place(node) {
            Location::Diff { number, node } => self.diff(number)?.xattr(node, name),
            _ => Err(Errno::NoAttribute),
        }
    }

    fn xattr_names(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        match place(node) {
            Location::Diff { number, node } => self.diff(number)?.xattr_names(node),
            _ => Ok(Vec::new()),
        }
    }

    fn has_xattrs(&self) -> bool {
        true
    }

    fn content(&self, node: NodeId) -> Result<Content, Errno> {
        match place(node) {
            Location::Diff { number, node } => self.diff(number)?.content(node),
            Location::Own { file: INFO | BLOB, .. } => Ok(Content { object: None, size: self.attributes(node)?.size }),
            _ => Err(Errno::IsADirectory),
        }
    }

    fn held(&self, node: NodeId) -> Option<Bytes> {
        let Location::Own { directory, file: INFO } = place(node) else { return None };
        self.shown(directory).ok().map(|(_, shown)| shown.info)
    }

    fn streamed(&self, node: NodeId, offset: u64, length: u32) -> Option<BoxFuture<'static, Result<Bytes, Errno>>> {
        let Location::Own { directory, file: BLOB } = place(node) else { return None };
        let key = self.key(directory).ok()?;
        Some(self.layers.blob(&key, offset, length))
    }

    fn attempted(&self, parent: NodeId, name: &[u8], what: Attempt) -> Option<BoxFuture<'static, Errno>> {
        let Location::Own { directory, file: 0 } = place(parent) else { return None };
        let (key, change) = match (self.what(directory).ok()?, what) {
            (What::Layer(key), Attempt::Create) if name == b"use" => (key, Use::More),
            (What::Image(image), Attempt::RemoveDirectory) => {
                let digest = std::str::from_utf8(name).ok()?.parse().ok()?;
                (LayerKey { image, digest }, Use::Less)
            }
            _ => return None,
        };
        let counted = self.layers.used(&key, change);
        Some(Box::pin(async move {
            counted.await;
            // Confirms that the use was counted: any other answer means that uses are not counted.
            Errno::NotFound
        }))
    }

    fn forwards_changes(&self) -> bool {
        true
    }

    fn forget(&self, node: NodeId, count: u64) {
        if let Location::Own { directory, .. } = place(node) {
            self.nodes.lock().forget(directory, count);
        }
    }

    fn names_may_appear(&self) -> bool {
        false
    }

    fn lasts(&self, node: NodeId) -> bool {
        matches!(place(node), Location::Diff { .. })
    }

    fn lists_change(&self) -> bool {
        true
    }

    fn has_access_lists(&self) -> bool {
        false
    }

    fn totals(&self) -> Totals {
        self.nodes.lock().layers.totals()
    }
}
