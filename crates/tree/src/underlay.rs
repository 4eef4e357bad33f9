//! A layer that lies below any layer: what it takes to show one layer by itself.
//!
//! [`crate::delta`] makes whiteouts of what is there to be removed. Whoever does not know what will lie below wants all of them,
//! as unpacking the layer into a folder of its own leaves them. So this gives the layer something to remove wherever it does.

use tarpon_layer::{Attributes, Entry, LayerIndex, LayerPath, Node};

/// What is put into directories that the layer removes or empties.
const FILLER: &[u8] = b"\x01filler";
/// What is put beside names that the layer removes: a directory in which nothing of below stays would be opaque.
const SURVIVOR: &[u8] = b"\x01survivor";

/// The smallest layer over which every whiteout and every opaque marker of `layer` takes effect, and takes no more than its own.
/// `root`: the attributes of a root that `layer` does not list.
///
/// An opaque marker in the root is left out: overlayfs takes no root for opaque. So are paths that are too long for one more
/// component: nothing can lie below them.
pub fn underlay(layer: &LayerIndex, root: Attributes) -> LayerIndex {
    let mut paths: Vec<LayerPath> = Vec::new();
    for entry in &layer.entries {
        let Some((parent, _)) = entry.path.split_last() else { continue };
        if matches!(entry.node, Node::Whiteout | Node::Opaque) {
            // A directory with something in it, also for a whiteout: the layer may make one of that name anew, which then has to
            // hide what is below.
            paths.extend([inside(entry.path.as_bytes(), FILLER), inside(parent, SURVIVOR)].into_iter().flatten());
        }
    }
    paths.sort_unstable();
    paths.dedup();
    let fillers = paths.into_iter().map(|path| Entry { path, node: Node::Fifo, attributes: Attributes::default() });
    let root = Entry { path: LayerPath::root(), node: Node::Directory, attributes: root };
    LayerIndex { entries: std::iter::once(root).chain(fillers).collect(), ..LayerIndex::default() }
}

fn inside(directory: &[u8], name: &[u8]) -> Option<LayerPath> {
    let between: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    LayerPath::from_normal(&[directory, between, name].concat())
}
