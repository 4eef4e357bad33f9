//! [`LayerNumbers`]: the ranges of node ids that layers have in a file system that shows several of them.
//!
//! A layer keeps its number while the file system is mounted, also beyond the server that gave it: containers have mounts
//! on its directories. So a number is never given to another layer, even if its own layer cannot be loaded any more.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use bytes::Bytes;
use tarpon_fs::{NodeId, Operations, Totals};

use crate::diff_fs::{DiffFs, NODE_BITS};

/// Maximum number of layers that fit into a node id.
const LAYERS: usize = (1 << (64 - NODE_BITS)) - 2;

/// A layer that is shown.
pub(crate) type Diff = Arc<DiffFs<Bytes>>;

/// Layers by number, from 1. `K` identifies a layer for every server.
#[derive(Clone)]
pub(crate) struct LayerNumbers<K> {
    /// `None`: an earlier server gave the number, and this one has not loaded the layer.
    layers: Vec<(K, Option<Diff>)>,
    numbers: HashMap<K, u64>,
}

impl<K> Default for LayerNumbers<K> {
    fn default() -> Self {
        Self { layers: Vec::new(), numbers: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> LayerNumbers<K> {
    /// The numbers that an earlier server gave, in order. `None`: a layer has two of them, or there are too many.
    pub(crate) fn restored(keys: Vec<K>) -> Option<Self> {
        let numbers: HashMap<K, u64> = keys.iter().cloned().zip(1..).collect();
        let is_valid = numbers.len() == keys.len() && keys.len() <= LAYERS;
        is_valid.then(|| Self { layers: keys.into_iter().map(|key| (key, None)).collect(), numbers })
    }

    /// Whether the layer has a number, loaded or not.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.numbers.contains_key(key)
    }

    /// The number of a layer, a new one if it has none. `None`: there are no more numbers.
    pub(crate) fn number(&mut self, key: &K, diff: &Diff) -> Option<u64> {
        if let Some(number) = self.numbers.get(key).copied() {
            self.load(number, diff);
            return Some(number);
        }
        if self.layers.len() >= LAYERS {
            return None;
        }
        self.layers.push((key.clone(), Some(diff.clone())));
        let number = self.layers.len() as u64;
        self.numbers.insert(key.clone(), number);
        Some(number)
    }

    /// The layer with this number is loaded from now on. The first one stays, since all with one key are equal.
    pub(crate) fn load(&mut self, number: u64, diff: &Diff) {
        if let Some((_, loaded)) = index(number).and_then(|index| self.layers.get_mut(index)) {
            loaded.get_or_insert_with(|| diff.clone());
        }
    }

    /// The layer with this number, if it is loaded.
    pub(crate) fn get(&self, number: u64) -> Option<&Diff> {
        self.layers.get(index(number)?)?.1.as_ref()
    }

    /// The layer that has this number, loaded or not.
    pub(crate) fn key(&self, number: u64) -> Option<&K> {
        Some(&self.layers.get(index(number)?)?.0)
    }

    /// All layers in the order of their numbers, loaded or not.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.layers.iter().map(|(key, _)| key)
    }

    /// Figures of all loaded layers together.
    pub(crate) fn totals(&self) -> Totals {
        let layers = self.layers.iter().filter_map(|(_, layer)| layer.as_ref()).map(|layer| layer.totals());
        layers.fold(Totals::default(), |sum, layer| Totals {
            bytes: sum.bytes.saturating_add(layer.bytes),
            inodes: sum.inodes.saturating_add(layer.inodes),
        })
    }
}

fn index(number: u64) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}

/// The number of the layer that has this node, and the node's id in the layer. `None`: the node is in no layer.
pub(crate) fn inward(node: NodeId) -> Option<(u64, NodeId)> {
    let number = node.0 >> NODE_BITS;
    (number > 0).then_some((number, NodeId(node.0 & ((1 << NODE_BITS) - 1))))
}

/// The id of a layer's node in the file system that shows the layer.
pub(crate) fn outward(number: u64, node: NodeId) -> NodeId {
    NodeId(number << NODE_BITS | node.0)
}
