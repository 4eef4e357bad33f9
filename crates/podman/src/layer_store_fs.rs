//! [`LayerStoreFs`]: an additional layer store for containers/storage.
//!
//! ```text
//! /<base64 of the image's name>/<digest>/diff/    the layer, as presented to overlayfs
//!                                        info     its description, as JSON
//!                                        blob     the layer as stored in the registry
//!                                        use      never exists: an attempt to create it adds one use of the layer
//! ```
//!
//! Directories of images and layers exist as soon as they are looked up, because only a registry knows what a layer's
//! directory contains. The registry is queried when one of the three names in it is looked up, and the lookup waits for
//! it. An attempt to remove the directory of a layer subtracts one use. In both cases Podman expects the answer `ENOENT`.
//!
//! Nodes live as long as the kernel refers to them, except those of layers, which stay: containers use them without their names.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tarpon_fs::{Attempt, Attr, Content, DirEntry, Errno, Kind, NodeId, Operations, Take, Totals};
use tarpon_layer::Timestamp;
use tarpon_oci::{Digest, Reference};

use super::diff_fs::{DiffFs, NODE_BITS};

/// Node ids per directory, including its files.
const NODES: u64 = 4;
/// Offsets of the files' ids from the first, which is the layer's directory.
const INFO: u64 = 1;
const BLOB: u64 = 2;
/// Maximum number of layers that fit into a node id.
const LAYERS: usize = (1 << (64 - NODE_BITS)) - 2;

/// Identifies a layer: by its image, and by the digest of its blob or of its table of contents.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct LayerKey {
    /// The image.
    pub(crate) image: Reference,
    /// One of the two digests.
    pub(crate) digest: Digest,
}

/// Content of a layer's directory.
#[derive(Clone)]
pub(crate) struct ShownLayer {
    /// The layer.
    pub(crate) diff: Arc<DiffFs<Bytes>>,
    /// Its description.
    pub(crate) info: Bytes,
    /// Size of its blob in bytes.
    pub(crate) blob_size: u64,
}

/// A change of a layer's use count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// One more.
    More,
    /// One less.
    Less,
}

/// The source of layers.
pub(crate) trait Layers: Send + Sync + 'static {
    /// The layer, if it is known. Answers from memory.
    fn get(&self, key: &LayerKey) -> Option<ShownLayer>;

    /// Determines whether the layer exists: afterwards [`Layers::get`] returns it, or there is none. Ends in less than
    /// two minutes.
    fn find(&self, key: &LayerKey) -> BoxFuture<'static, ()>;

    /// Changes its use count.
    fn used(&self, key: &LayerKey, change: Use) -> BoxFuture<'static, ()>;

    /// A part of its blob: exactly this many bytes, or fewer at its end. Ends in less than two minutes.
    fn blob(&self, key: &LayerKey, offset: u64, length: u32) -> BoxFuture<'static, Result<Bytes, Errno>>;
}

/// The file system.
pub(crate) struct LayerStoreFs {
    layers: Arc<dyn Layers>,
    nodes: Mutex<Nodes>,
    since: Timestamp,
}

#[derive(Default)]
struct Nodes {
    /// Keyed by the first of their ids, divided by [`NODES`].
    directories: HashMap<u64, Named>,
    /// The same, keyed by parent and name.
    names: HashMap<(u64, Box<[u8]>), u64>,
    last: u64,
    diffs: Vec<Arc<DiffFs<Bytes>>>,
    /// Number of each layer's `diff`, from 1.
    numbers: HashMap<LayerKey, u64>,
}

/// A directory known to the kernel.
struct Named {
    parent: u64,
    name: Box<[u8]>,
    what: What,
    /// References held by the kernel, including those to its files.
    lookups: u64,
}

#[derive(Clone)]
enum What {
    Image(Reference),
    Layer(LayerKey),
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
    match (node, node.0 >> NODE_BITS) {
        (NodeId::ROOT, _) => Location::Root,
        (_, 0) => Location::Own { directory: node.0 / NODES, file: node.0 % NODES },
        (_, number) => Location::Diff { number, node: NodeId(node.0 & ((1 << NODE_BITS) - 1)) },
    }
}

fn outward(number: u64, attr: Attr) -> Attr {
    Attr { node: NodeId(number << NODE_BITS | attr.node.0), ..attr }
}

/// The image that a directory's name encodes. Names that are no reference cause no queries.
fn image(name: &[u8]) -> Option<Reference> {
    let text = String::from_utf8(BASE64_STANDARD.decode(name).ok()?).ok()?;
    text.parse().ok()
}

impl LayerStoreFs {
    /// Creates a file system that shows `layers`. `since`: the time of its own directories and files.
    pub(crate) fn new(layers: Arc<dyn Layers>, since: Timestamp) -> Self {
        Self { layers, nodes: Mutex::default(), since }
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
            None => nodes.add(parent, name, what().ok_or(Errno::NotFound)?)?,
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
                let number = nodes.number(key, &shown.diff)?;
                return Ok(outward(number, shown.diff.attributes(NodeId::ROOT)?));
            }
            _ => return Err(Errno::NotFound),
        };
        nodes.refer(directory)?;
        Ok(attr)
    }

    fn diff(&self, number: u64) -> Result<Arc<DiffFs<Bytes>>, Errno> {
        let index = usize::try_from(number - 1).map_err(|_| Errno::Stale)?;
        self.nodes.lock().diffs.get(index).cloned().ok_or(Errno::Stale)
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

impl Nodes {
    fn add(&mut self, parent: u64, name: &[u8], what: What) -> Result<u64, Errno> {
        let directory = self.last + 1;
        if directory.saturating_mul(NODES) >> NODE_BITS != 0 {
            return Err(Errno::Io);
        }
        self.last = directory;
        self.names.insert((parent, name.into()), directory);
        self.directories.insert(directory, Named { parent, name: name.into(), what, lookups: 0 });
        Ok(directory)
    }

    fn refer(&mut self, directory: u64) -> Result<(), Errno> {
        self.directories.get_mut(&directory).ok_or(Errno::Stale)?.lookups += 1;
        Ok(())
    }

    fn forget(&mut self, directory: u64, count: u64) {
        let Some(named) = self.directories.get_mut(&directory) else { return };
        named.lookups = named.lookups.saturating_sub(count);
        if named.lookups == 0
            && let Some(named) = self.directories.remove(&directory)
        {
            self.names.remove(&(named.parent, named.name));
        }
    }

    /// Each layer has its own number, even if two show the same content: the kernel allows a directory in one place only.
    fn number(&mut self, key: LayerKey, diff: &Arc<DiffFs<Bytes>>) -> Result<u64, Errno> {
        let known = self.numbers.get(&key).copied();
        let index = |number: u64| usize::try_from(number - 1).ok();
        let same = known.filter(|number| {
            index(*number).and_then(|index| self.diffs.get(index)).is_some_and(|known| Arc::ptr_eq(known, diff))
        });
        if let Some(number) = same {
            return Ok(number);
        }
        if self.diffs.len() >= LAYERS {
            return Err(Errno::Io);
        }
        self.diffs.push(diff.clone());
        let number = self.diffs.len() as u64;
        self.numbers.insert(key, number);
        Ok(number)
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
            Location::Diff { number, node } => Ok(outward(number, self.diff(number)?.lookup(node, name)?)),
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
            Location::Diff { number, node } => Ok(outward(number, self.diff(number)?.attributes(node)?)),
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
            return self.diff(number)?.read_dir(node, position, &mut |entry| {
                take(DirEntry { node: NodeId(number << NODE_BITS | entry.node.0), ..entry })
            });
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
        let nodes = self.nodes.lock();
        let all = nodes.diffs.iter().map(|diff| diff.totals());
        all.fold(Totals::default(), |sum, layer| Totals {
            bytes: sum.bytes.saturating_add(layer.bytes),
            inodes: sum.inodes.saturating_add(layer.inodes),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;
    use tarpon_testkit::entries::{file, layer};

    use super::*;

    const NAME: &str = "localhost:5000/debian:multi";

    /// Knows one layer, once it has been searched for.
    struct One {
        known: Mutex<bool>,
        shown: ShownLayer,
        looked: AtomicUsize,
        uses: Mutex<Vec<(LayerKey, Use)>>,
    }

    fn key() -> LayerKey {
        LayerKey { image: NAME.parse().unwrap(), digest: Digest::of(b"layer") }
    }

    struct Shared(Arc<One>);

    impl Layers for Shared {
        fn get(&self, asked: &LayerKey) -> Option<ShownLayer> {
            (*self.0.known.lock() && *asked == key()).then(|| self.0.shown.clone())
        }

        fn find(&self, _: &LayerKey) -> BoxFuture<'static, ()> {
            let one = self.0.clone();
            async move {
                one.looked.fetch_add(1, Ordering::Relaxed);
                *one.known.lock() = true;
            }
            .boxed()
        }

        fn used(&self, key: &LayerKey, change: Use) -> BoxFuture<'static, ()> {
            self.0.uses.lock().push((key.clone(), change));
            futures::future::ready(()).boxed()
        }

        fn blob(&self, _: &LayerKey, offset: u64, length: u32) -> BoxFuture<'static, Result<Bytes, Errno>> {
            futures::future::ready(Ok(Bytes::from(format!("{offset}+{length}")))).boxed()
        }
    }

    fn store() -> (Arc<One>, LayerStoreFs) {
        let layers = [layer([file("f", "abc")])];
        let tree = Bytes::from(tarpon_tree::erofs::write(&tarpon_tree::merge(&layers).unwrap()));
        let shown = ShownLayer {
            diff: Arc::new(DiffFs::alone(tree).unwrap()),
            info: Bytes::from_static(b"{}"),
            blob_size: 1000,
        };
        let (known, looked, uses) = Default::default();
        let one = Arc::new(One { known, shown, looked, uses });
        (one.clone(), LayerStoreFs::new(Arc::new(Shared(one)), Timestamp::default()))
    }

    fn image_name() -> String {
        BASE64_STANDARD.encode(NAME)
    }

    /// Looks the path up like the kernel: waits first where required.
    fn find(files: &LayerStoreFs, path: &[&str]) -> Result<Attr, Errno> {
        path.iter().try_fold(files.attributes(NodeId::ROOT)?, |at, name| {
            if let Some(wait) = files.before_lookup(at.node, name.as_bytes()) {
                wait.now_or_never().unwrap();
            }
            files.lookup(at.node, name.as_bytes())
        })
    }

    #[test]
    fn directories_exist_on_lookup_and_a_layer_is_searched_with_its_names() {
        let (one, files) = store();
        let (image, digest) = (image_name(), key().digest.to_string());
        assert_eq!(image, "bG9jYWxob3N0OjUwMDAvZGViaWFuOm11bHRp");
        assert_eq!(find(&files, &[&image, &digest]).unwrap().kind, Kind::Directory);
        assert_eq!(one.looked.load(Ordering::Relaxed), 0, "nobody was asked for that");
        assert_eq!(find(&files, &[&image, &digest, "use"]), Err(Errno::NotFound));
        assert_eq!(one.looked.load(Ordering::Relaxed), 0);
        assert_eq!(find(&files, &[&image, &digest, "diff", "f"]).unwrap().size, 3);
        let info = find(&files, &[&image, &digest, "info"]).unwrap();
        assert_eq!((info.size, files.held(info.node).unwrap()), (2, Bytes::from_static(b"{}")));
        let blob = find(&files, &[&image, &digest, "blob"]).unwrap();
        assert_eq!((blob.size, files.content(blob.node).unwrap().size), (1000, 1000));
        let read = files.streamed(blob.node, 7, 9).unwrap().now_or_never().unwrap().unwrap();
        assert_eq!((read, files.held(blob.node)), (Bytes::from_static(b"7+9"), None));
        assert_eq!(one.looked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_invalid_reference_or_digest_does_not_exist_and_causes_no_lookup() {
        let (one, files) = store();
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        for name in ["", ".", "pool", "x y", &encoded("lower/UPPER"), &encoded("-"), &key().digest.to_string()] {
            assert_eq!(find(&files, &[name]), Err(Errno::NotFound), "{name}");
        }
        for name in ["diff", "sha256:0", "sha512:00", &encoded(NAME)] {
            assert_eq!(find(&files, &[&image_name(), name]), Err(Errno::NotFound), "{name}");
        }
        let other = Digest::of(b"another").to_string();
        assert_eq!(find(&files, &[&image_name(), &other, "diff"]), Err(Errno::NotFound));
        assert_eq!(one.looked.load(Ordering::Relaxed), 1, "for the last one alone");
    }

    #[test]
    fn making_use_and_removing_a_layer_count_and_are_answered_as_if_nothing_was_there() {
        let (one, files) = store();
        let image = find(&files, &[&image_name()]).unwrap().node;
        let digest = key().digest.to_string();
        let layer = find(&files, &[&image_name(), &digest]).unwrap().node;
        let attempt = |parent, name: &str, what| {
            files.attempted(parent, name.as_bytes(), what).map(|answer| answer.now_or_never().unwrap())
        };
        assert_eq!(attempt(layer, "use", Attempt::Create), Some(Errno::NotFound));
        assert_eq!(attempt(image, &digest, Attempt::RemoveDirectory), Some(Errno::NotFound));
        assert_eq!(*one.uses.lock(), [(key(), Use::More), (key(), Use::Less)]);
        for (parent, name, what) in [
            (layer, "other", Attempt::Create),
            (layer, "diff", Attempt::RemoveDirectory),
            (image, "use", Attempt::Create),
            (image, "diff", Attempt::RemoveDirectory),
            (NodeId::ROOT, "use", Attempt::Create),
        ] {
            assert_eq!(attempt(parent, name, what), None, "{name}: not allowed");
        }
        assert!(files.forwards_changes());
    }

    #[test]
    fn nodes_live_as_long_as_the_kernel_knows_them_and_layers_longer() {
        let (_, files) = store();
        let (image, digest) = (image_name(), key().digest.to_string());
        let file = find(&files, &[&image, &digest, "diff", "f"]).unwrap().node;
        let info = find(&files, &[&image, &digest, "info"]).unwrap().node;
        let layer = find(&files, &[&image, &digest]).unwrap().node;
        files.forget(layer, 3);
        assert!(files.held(info).is_some(), "one of its files is known");
        files.forget(info, 1);
        assert_eq!(files.attributes(layer), Err(Errno::Stale));
        assert_eq!(files.attributes(file).unwrap().size, 3);
        assert!(files.lasts(file) && !files.lasts(layer));
        assert_ne!(find(&files, &[&image, &digest]).unwrap().node, layer, "it is another one");
        assert_eq!(find(&files, &[&image, &digest, "diff", "f"]).unwrap().node, file, "it is the same");
        let image = find(&files, &[&image]).unwrap().node;
        files.forget(image, 100);
        assert_eq!(files.nodes.lock().names.len(), 1);
    }

    #[test]
    fn own_directories_list_nothing_and_layers_what_is_in_them() {
        let (_, files) = store();
        let (image, digest) = (image_name(), key().digest.to_string());
        let names = |path: &[&str]| {
            let mut names = Vec::new();
            let mut take = |entry: DirEntry<'_>| {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                Take::More
            };
            files.read_dir(find(&files, path).unwrap().node, 0, &mut take).unwrap();
            names
        };
        for path in [&[][..], &[&*image], &[&*image, &*digest]] {
            assert_eq!(names(path), [".", ".."]);
        }
        assert_eq!(names(&[&image, &digest, "diff"]), [".", "..", "f"]);
    }
}
