//! Invariant: a stack of layers is refused by the merge exactly when the naive model refuses it; otherwise both show the
//! same tree, so does the EROFS image of it, that image passes its check, and the order inside layers makes no difference.

use tarpon_layer::LayerIndex;
use tarpon_tree::erofs::{self, Image};

use crate::{stacks, tree_model};

/// Runs `data`, as a stack of layers, through merge, write and read.
pub fn tree_build(data: &[u8]) {
    let layers = stacks::from_bytes(data);
    let merged = tarpon_tree::merge(&layers);
    assert_eq!(merged.as_ref().ok().map(|tree| tree.dump()), tree_model::dump(&layers));
    let shuffled: Vec<LayerIndex> = layers.iter().cloned().map(backwards).collect();
    let again = tarpon_tree::merge(&shuffled);
    assert_eq!(merged.as_ref().err().is_some(), again.as_ref().err().is_some());
    let (Ok(tree), Ok(again)) = (merged, again) else { return };
    let bytes = erofs::write(&tree);
    assert_eq!(bytes, erofs::write(&again), "the order inside a layer shows");
    let image = Image::open(&bytes).expect("what was written can be opened");
    assert_eq!(image.dump().expect("what was written holds together"), tree.dump());
    for dentry in tree.walk() {
        let found = image.resolve(&tree.path(dentry)).expect("directories can be read");
        assert!(found.is_some(), "a listed name is not found");
    }
}

fn backwards(mut layer: LayerIndex) -> LayerIndex {
    layer.entries.reverse();
    layer
}
