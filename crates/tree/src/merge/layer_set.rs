//! A set of layers, as bits.

use tarpon_oci::limits;

/// Some of the at most [`limits::LAYERS`] layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LayerSet([u64; limits::LAYERS / 64]);

impl LayerSet {
    /// Adds a layer.
    pub(super) fn insert(&mut self, layer: u32) {
        self.0[layer as usize / 64] |= 1 << (layer % 64);
    }

    /// Whether the layer is in it.
    pub(super) fn contains(&self, layer: u32) -> bool {
        self.0[layer as usize / 64] >> (layer % 64) & 1 == 1
    }
}
