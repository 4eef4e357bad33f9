//! [`Stack`]: the layers of an image, to merge them and to compare each with those below it.

use tarpon_layer::LayerIndex;
use tarpon_oci::limits;

use super::merged::merge_ordered;
use super::order::Ordered;
use super::{MergeError, check, selection};
use crate::delta::delta;
use crate::tree::Tree;

/// The layers of an image, the bottom one first. Their entries are sorted once.
pub struct Stack<'a> {
    layers: &'a [LayerIndex],
    ordered: Ordered<'a>,
}

impl<'a> Stack<'a> {
    /// Checks each entry and sorts all.
    ///
    /// # Errors
    /// There are too many layers or entries, or an entry is invalid by itself.
    pub fn new(layers: &'a [LayerIndex]) -> Result<Self, MergeError> {
        if layers.len() > limits::LAYERS {
            return Err(MergeError::TooManyLayers(layers.len()));
        }
        check::entries(layers)?;
        Ok(Self { layers, ordered: Ordered::new(layers) })
    }

    /// See [`crate::merge`].
    ///
    /// # Errors
    /// The layers make no tree.
    pub fn merged(&self) -> Result<Tree<'a>, MergeError> {
        merge_ordered(self.layers, &self.ordered)
    }

    /// The changes of a layer to those below it: the [`delta`] of two merges, of which only those entries are merged that have a part in
    /// it. Layers above have none.
    ///
    /// # Errors
    /// The layer and those below it make no tree.
    pub fn delta(&self, layer: usize) -> Result<Tree<'a>, MergeError> {
        let number = u32::try_from(layer).map_err(|_| MergeError::TooManyLayers(layer))?;
        let chosen = selection::choose(&self.ordered, number);
        let below = self.ordered.filtered(|position, placed| chosen[position] && placed.layer < number);
        let with_layer = self.ordered.filtered(|position, placed| chosen[position] && placed.layer <= number);
        Ok(delta(self.layers, &merge_ordered(self.layers, &below)?, &merge_ordered(self.layers, &with_layer)?))
    }
}
