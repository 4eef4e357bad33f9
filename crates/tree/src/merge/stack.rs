//! [`Stack`]: the layers of an image, to merge them and to compare each with those below it.

use std::rc::Rc;

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
    /// The merge of this many of the lowest layers, which was made last: the next layer is compared with it.
    lowest: Option<(usize, Rc<Tree<'a>>)>,
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
        Ok(Self { layers, ordered: Ordered::new(layers), lowest: None })
    }

    /// See [`crate::merge`].
    ///
    /// # Errors
    /// The layers make no tree.
    pub fn merged(self) -> Result<Tree<'a>, MergeError> {
        let known =
            self.lowest.filter(|(count, _)| *count == self.layers.len()).and_then(|(_, tree)| Rc::into_inner(tree));
        known.map_or_else(|| merge_ordered(self.layers, self.ordered), Ok)
    }

    /// The changes of a layer to those below it: the [`delta`] of two merges, of which only those entries are merged that have a part in
    /// it. Layers above have none. Asking for the layers from the bottom up saves merges.
    ///
    /// # Errors
    /// The layer and those below it make no tree.
    pub fn delta(&mut self, layer: usize) -> Result<Tree<'a>, MergeError> {
        let number = u32::try_from(layer).map_err(|_| MergeError::TooManyLayers(layer))?;
        let Some(chosen) = selection::choose(&self.ordered, number) else {
            let (below, with_layer) = (self.lowest(layer)?, self.lowest(layer + 1)?);
            return Ok(delta(self.layers, &below, &with_layer));
        };
        let below = self.ordered.filtered(|position, placed| chosen[position] && placed.layer < number);
        let with_layer = self.ordered.filtered(|position, placed| chosen[position] && placed.layer <= number);
        Ok(delta(self.layers, &merge_ordered(self.layers, below)?, &merge_ordered(self.layers, with_layer)?))
    }

    /// The merge of the lowest layers.
    fn lowest(&mut self, count: usize) -> Result<Rc<Tree<'a>>, MergeError> {
        if let Some((known, tree)) = &self.lowest
            && *known == count
        {
            return Ok(Rc::clone(tree));
        }
        let entries = self.ordered.filtered(|_, placed| (placed.layer as usize) < count);
        let tree = Rc::new(merge_ordered(self.layers, entries)?);
        self.lowest = Some((count, Rc::clone(&tree)));
        Ok(tree)
    }
}
