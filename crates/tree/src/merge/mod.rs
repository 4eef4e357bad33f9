//! Merges the layers of an image.
//!
//! The rules, for a path and the layers counted from the bottom up:
//!
//! - The topmost entry wins. For a directory over a directory: attributes of the upper one, children of both.
//! - A whiteout or opaque marker acts on the layers *below* its own, never on its own. So the order of entries inside a
//!   layer does not matter, and a layer may remove and recreate a name.
//! - A non-directory hides the children of its path in layers below.
//! - A directory that no layer lists but that one has entries in is implied: root's, 0755, at the epoch. Where a layer
//!   below lists it, it keeps those attributes (umoci 0.4 does so; Podman 4.3 resets it to 0755). It stays when a
//!   layer above removes its entries. It replaces a non-directory in a layer below: paths are never followed through
//!   symbolic links. Overlays of unpacked layers behave in the same way (Docker, Podman). Runtimes that unpack into one
//!   folder (umoci, containerd) follow the link. Whiteouts imply nothing (as umoci; Podman makes their folders).
//! - A hard link has the inode of its target in its own layer or, failing that, the one visible there in the layers below,
//!   with the changes of the link's layer (as umoci; Podman refuses those). It remains when the target's name is hidden.
//!   Link counts count visible names.
//! - A root that no layer lists is 0755 (as umoci; Podman makes it 0555).
//!
//! Refused with the layer and path: an entry below a non-directory of the same layer, two entries of one name in a
//! layer, hard links that lead nowhere, to a directory or in a circle, a root that is no directory, and values that no
//! file system accepts.
//!
//! Algorithm: all entries of all layers are sorted by path once ([`order`]), then one pass in pre-order decides what is visible
//! ([`visible`]), then links are resolved and inodes numbered ([`links`]). No recursion, no map of paths. [`merged`] is these steps.

mod check;
mod error;
mod layer_set;
mod links;
mod merged;
mod order;
mod selection;
mod stack;
mod visible;

pub use error::{MergeError, Problem};
pub use stack::Stack;
use tarpon_layer::LayerIndex;

use crate::tree::Tree;

/// Merges the layers of an image, the bottom one first. Without layers the result is an empty root.
pub fn merge(layers: &[LayerIndex]) -> Result<Tree<'_>, MergeError> {
    Stack::new(layers)?.merged()
}
