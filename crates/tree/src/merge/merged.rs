//! The tree of sorted entries.

use tarpon_layer::LayerIndex;

use super::order::Ordered;
use super::{MergeError, Problem, links, visible};
use crate::objects::{self, Disagreement};
use crate::tree::{self, Inode, Tree, count_subdirectories};

/// Merges some of the entries of these layers, which were checked.
pub(super) fn merge_ordered<'a>(layers: &'a [LayerIndex], ordered: Ordered<'a>) -> Result<Tree<'a>, MergeError> {
    let visible = visible::walk(&ordered)?;
    let (dentries, mut inodes) = links::number(&ordered, visible)?;
    drop(ordered);
    count_subdirectories(&dentries, &mut inodes);
    let objects = objects::representatives(layers, &inodes).map_err(|reason| disagreement(&inodes, &reason))?;
    let dropped_xattrs = tree::count_dropped(layers, &inodes);
    Ok(Tree { dentries, inodes, objects, dropped_xattrs })
}

fn disagreement(inodes: &[Inode<'_>], reason: &Disagreement) -> MergeError {
    let inode = &inodes[reason.inode];
    let path = inode.entry.map(|entry| entry.path.clone()).unwrap_or_default();
    let problem = Problem::ObjectSize { size: reason.size, other_size: reason.other_size };
    MergeError::Entry { layer: inode.layer(), path, problem }
}
