//! Operations on a tree: merging, writing, look-ups.

use std::sync::Arc;

use tarpon_tree::erofs::{self, Image};

use crate::Runs;
use crate::inputs::stack;

const LAYERS: u64 = 5;
const FILES: u64 = 200;

pub(crate) fn merge() -> Runs {
    let layers = Arc::new(stack(LAYERS, FILES));
    Box::new(move || {
        let layers = layers.clone();
        Box::new(move || tarpon_tree::merge(&layers).unwrap().walk().len() as u64)
    })
}

pub(crate) fn erofs_write() -> Runs {
    let layers = Arc::new(stack(LAYERS, FILES));
    Box::new(move || {
        // The tree borrows from the layers, so they live in the run as well.
        let layers = layers.clone();
        Box::new(move || {
            let tree = tarpon_tree::merge(&layers).unwrap();
            erofs::write(&tree).len() as u64
        })
    })
}

/// Looks up every path of the image from its root.
pub(crate) fn erofs_lookup() -> Runs {
    let layers = stack(LAYERS, FILES);
    let tree = tarpon_tree::merge(&layers).unwrap();
    let paths: Vec<Vec<u8>> = tree.walk().map(|dentry| tree.path(dentry)).collect();
    let shared = Arc::new((erofs::write(&tree), paths));
    Box::new(move || {
        let shared = shared.clone();
        Box::new(move || {
            let (bytes, paths) = &*shared;
            let image = Image::open(bytes).unwrap();
            paths.iter().filter(|path| image.resolve(path).unwrap().is_some()).count() as u64
        })
    })
}
