//! A layer to put below any layer, so that the latter can be shown by itself.
//!
//! [`crate::delta`] makes whiteouts only of existing names. If the content below is unknown, all whiteouts are needed, as when the
//! layer is unpacked into a folder of its own. So this gives the layer something to remove wherever it removes.

use tarpon_layer::{Attributes, Entry, LayerIndex, LayerPath, Node};

/// Name put into directories that the layer removes or empties.
const FILLER: &[u8] = b"\x01filler";
/// Name put beside names that the layer removes: a directory without remaining names of lower layers would be opaque.
const SURVIVOR: &[u8] = b"\x01survivor";

/// The smallest layer over which every whiteout and every opaque marker of `layer` has an effect, and removes only this layer's
/// names. `root`: the attributes of a root that `layer` does not list.
///
/// An opaque marker in the root is omitted: overlayfs does not accept an opaque root. So are paths that are too long for one more
/// component: nothing can be below them.
pub fn underlay(layer: &LayerIndex, root: Attributes) -> LayerIndex {
    let mut paths: Vec<LayerPath> = Vec::new();
    for entry in &layer.entries {
        let Some((parent, _)) = entry.path.split_last() else { continue };
        if matches!(entry.node, Node::Whiteout | Node::Opaque) {
            // A non-empty directory, also for a whiteout: the layer may recreate that name, which then has to hide the content below.
            paths.extend([inside(entry.path.as_bytes(), FILLER), inside(parent, SURVIVOR)].into_iter().flatten());
        }
    }
    paths.sort_unstable();
    paths.dedup();
    let fillers =
        paths.into_iter().map(|path| Entry { path, node: Node::Fifo, attributes: Attributes::default().into() });
    let root = Entry { path: LayerPath::root(), node: Node::Directory, attributes: root.into() };
    LayerIndex { entries: std::iter::once(root).chain(fillers).collect(), ..LayerIndex::default() }
}

fn inside(directory: &[u8], name: &[u8]) -> Option<LayerPath> {
    let between: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    LayerPath::from_normal(&[directory, between, name].concat())
}
