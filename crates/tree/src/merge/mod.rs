//! What do the layers of an image show together?
//!
//! The rules, for a path and the layers counted from the bottom up:
//!
//! - The topmost entry wins. A directory over a directory: attributes of the upper one, children of both.
//! - A whiteout or opaque marker acts on the layers *below* its own, never on its own. So the order of entries inside a
//!   layer does not matter, and a layer may remove and make anew what it names.
//! - What is not a directory hides the children that layers below gave to its path.
//! - A directory that no layer lists but that one has entries in is implied: root's, 0755, at the epoch. Where a layer
//!   below lists it, it keeps those attributes (umoci 0.4 does so; Podman 4.3 makes it 0755 anew). It stays when its
//!   entries are removed by a layer above. It replaces what is not a directory in a layer below: paths are never followed
//!   through symbolic links. That is what overlays of unpacked layers give (Docker, Podman); runtimes that unpack into one
//!   folder (umoci, containerd) follow the link. Whiteouts imply nothing (as umoci; Podman makes their folders).
//! - A hard link stands for its target in its own layer or, failing that, for what the layers below show there under what
//!   the link's layer says (as umoci; Podman refuses those). Then it lives on when the target's name is hidden. Link counts
//!   count visible names.
//! - A root that no layer lists is 0755 (as umoci; Podman makes it 0555).
//!
//! Refused with the layer and path: an entry below a non-directory of the same layer, two entries of one name in a
//! layer, hard links that lead nowhere, to a directory or in a circle, a root that is no directory, and values that no
//! file system takes.
//!
//! How: all entries of all layers are sorted by path once ([`order`]), then one pass in pre-order decides what is visible
//! ([`visible`]), then links are resolved and inodes numbered ([`links`]). No recursion, no map of paths.

mod check;
mod error;
mod layer_set;
mod links;
mod order;
mod visible;

pub use error::{MergeError, Problem};
use tarpon_layer::{LayerIndex, Node};
use tarpon_oci::limits;

use crate::objects::{self, Disagreement};
use crate::tree::{self, Inode, Tree};
use order::Ordered;

/// Merges the layers of an image, the bottom one first. No layers at all give an empty root.
pub fn merge(layers: &[LayerIndex]) -> Result<Tree<'_>, MergeError> {
    if layers.len() > limits::LAYERS {
        return Err(MergeError::TooManyLayers(layers.len()));
    }
    check::entries(layers)?;
    let ordered = Ordered::new(layers);
    let visible = visible::walk(&ordered)?;
    let (dentries, mut inodes) = links::number(&ordered, visible)?;
    count_subdirectories(&dentries, &mut inodes);
    let objects = objects::representatives(layers, &inodes).map_err(|reason| disagreement(&inodes, &reason))?;
    let dropped_xattrs = tree::count_dropped(layers, &inodes);
    Ok(Tree { dentries, inodes, objects, dropped_xattrs })
}

/// Directories are counted as file systems do: `.`, the name in the parent, and `..` of each subdirectory.
pub(crate) fn count_subdirectories(dentries: &[tree::Dentry<'_>], inodes: &mut [Inode<'_>]) {
    for dentry in dentries {
        let inode = &mut inodes[dentry.inode as usize];
        if !matches!(inode.node(), Node::Directory) {
            continue;
        }
        inode.links += 1;
        if !dentry.name.is_empty() {
            let parent = dentries[dentry.parent as usize].inode;
            inodes[parent as usize].links += 1;
        }
    }
}

fn disagreement(inodes: &[Inode<'_>], reason: &Disagreement) -> MergeError {
    let inode = &inodes[reason.inode];
    let path = inode.entry.map(|entry| entry.path.clone()).unwrap_or_default();
    let problem = Problem::ObjectSize { size: reason.size, other_size: reason.other_size };
    MergeError::Entry { layer: inode.layer(), path, problem }
}
