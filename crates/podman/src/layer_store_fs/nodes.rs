//! [`Nodes`]: the directories that the kernel knows, and the numbers of layers.

use std::collections::{HashMap, HashSet};

use tarpon_fs::Errno;
use tarpon_layer::Timestamp;
use tarpon_oci::{Digest, Reference};

use super::journal::{Journal, Record, Replay};
use super::layers::LayerKey;
use crate::diff_fs::NODE_BITS;
use crate::layer_numbers::{Diff, LayerNumbers};
use crate::saved_state::RestoreError;

/// Node ids per directory, including its files.
pub(super) const NODES: u64 = 4;
/// References that are never all forgotten. How many the kernel has from an earlier server is unknown. A directory that
/// stays without need is harmless: it takes a hundred bytes.
const FOREVER: u64 = u64::MAX / 2;

pub(super) struct Nodes {
    /// Keyed by the first of their ids, divided by [`NODES`].
    pub(super) directories: HashMap<u64, Named>,
    /// The same, keyed by parent and name.
    pub(super) names: HashMap<(u64, Box<[u8]>), u64>,
    last: u64,
    /// By their `diff` directories, with the digest of the content. Each layer has its own number, even if two show the same
    /// content: the kernel allows a directory in one place only.
    pub(super) layers: LayerNumbers<(LayerKey, Digest)>,
    journal: Journal,
    since: Timestamp,
}

/// A directory known to the kernel.
pub(super) struct Named {
    pub(super) parent: u64,
    pub(super) name: Box<[u8]>,
    pub(super) what: What,
    /// References held by the kernel, including those to its files.
    lookups: u64,
}

#[derive(Clone)]
pub(super) enum What {
    Image(Reference),
    Layer(LayerKey),
}

impl Nodes {
    /// No directories. `since`: their time.
    pub(super) fn empty(since: Timestamp) -> Self {
        Self {
            directories: HashMap::new(),
            names: HashMap::new(),
            last: 0,
            layers: LayerNumbers::default(),
            journal: Journal::new(0, since),
            since,
        }
    }

    /// The nodes of an earlier server, without loaded layers.
    pub(super) fn restored(saved: &[u8]) -> Result<Self, RestoreError> {
        let Replay { last, since, records } = Journal::read(saved)?;
        if !is_issuable(last) {
            return Err(RestoreError::Damaged("the last directory"));
        }
        let mut nodes = Self { last, ..Self::empty(since) };
        let (mut issued, mut layers) = (HashSet::new(), Vec::new());
        for record in records {
            match record {
                Record::Directory { directory, parent, name, image, layer } => {
                    if directory == 0 || directory > last || parent >= directory || !issued.insert(directory) {
                        return Err(RestoreError::Damaged("the number of a directory"));
                    }
                    let image = reference(&image)?;
                    let what = match layer {
                        Some(digest) => What::Layer(LayerKey { image, digest }),
                        None => What::Image(image),
                    };
                    nodes.restore(directory, parent, name.into(), what);
                }
                Record::Layer { image, digest, content } => {
                    layers.push((LayerKey { image: reference(&image)?, digest }, content));
                }
            }
        }
        nodes.layers = LayerNumbers::restored(layers).ok_or(RestoreError::Damaged("numbers of layers"))?;
        nodes.write_journal();
        Ok(nodes)
    }

    fn restore(&mut self, directory: u64, parent: u64, name: Box<[u8]>, what: What) {
        let forgotten = self.names.insert((parent, name.clone()), directory);
        // The kernel had forgotten the earlier directory of this name, otherwise it would have got that one again.
        forgotten.and_then(|forgotten| self.directories.remove(&forgotten));
        self.directories.insert(directory, Named { parent, name, what, lookups: FOREVER });
    }

    /// The time of all directories and their files.
    pub(super) fn since(&self) -> Timestamp {
        self.since
    }

    /// What [`Nodes::restored`] needs.
    pub(super) fn saved(&self) -> &[u8] {
        self.journal.bytes()
    }

    pub(super) fn add(&mut self, parent: u64, name: &[u8], what: What) -> Result<u64, Errno> {
        let directory = self.last + 1;
        if !is_issuable(directory) {
            return Err(Errno::Io);
        }
        self.last = directory;
        self.names.insert((parent, name.into()), directory);
        let named = Named { parent, name: name.into(), what, lookups: 0 };
        self.journal.add_directory(directory, &named.record(directory));
        self.directories.insert(directory, named);
        if self.journal.is_outdated(self.directories.len()) {
            self.write_journal();
        }
        Ok(directory)
    }

    fn write_journal(&mut self) {
        self.journal = Journal::new(self.last, self.since);
        for (key, content) in self.layers.keys() {
            // They fitted before, beside as many directories or more.
            let _fits = self.journal.add_layer(&Record::layer(key, *content));
        }
        // In this order a parent precedes what is in it.
        let mut directories: Vec<_> = self.directories.iter().collect();
        directories.sort_unstable_by_key(|(directory, _)| **directory);
        for (directory, named) in directories {
            self.journal.add_directory(self.last, &named.record(*directory));
        }
    }

    pub(super) fn refer(&mut self, directory: u64) -> Result<(), Errno> {
        self.directories.get_mut(&directory).ok_or(Errno::Stale)?.lookups += 1;
        Ok(())
    }

    pub(super) fn forget(&mut self, directory: u64, count: u64) {
        let Some(named) = self.directories.get_mut(&directory) else { return };
        named.lookups = named.lookups.saturating_sub(count);
        if named.lookups == 0
            && let Some(named) = self.directories.remove(&directory)
        {
            self.names.remove(&(named.parent, named.name));
        }
    }

    /// The number of a layer, and whether it is a new one.
    pub(super) fn number(&mut self, key: LayerKey, diff: &Diff) -> Result<(u64, bool), Errno> {
        let key = (key, diff.digest());
        let is_new = !self.layers.contains(&key);
        if is_new && !self.journal.add_layer(&Record::layer(&key.0, key.1)) {
            return Err(Errno::Io);
        }
        Ok((self.layers.number(&key, diff).ok_or(Errno::Io)?, is_new))
    }
}

impl Named {
    fn record(&self, directory: u64) -> Record {
        let (image, layer) = match &self.what {
            What::Image(image) => (image, None),
            What::Layer(key) => (&key.image, Some(key.digest)),
        };
        Record::Directory { directory, parent: self.parent, name: self.name.to_vec(), image: image.to_string(), layer }
    }
}

/// Whether the ids of this directory and its files are below those of layers.
fn is_issuable(directory: u64) -> bool {
    directory.saturating_mul(NODES) >> NODE_BITS == 0
}

fn reference(text: &str) -> Result<Reference, RestoreError> {
    text.parse().map_err(|_| RestoreError::Damaged("the name of an image"))
}
