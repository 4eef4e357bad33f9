//! Paths and layers of what a trace touched: for people who read it.

use std::collections::HashMap;

use tarpon_fetch::trace::Trace;
use tarpon_layer::ObjectId;
use tarpon_layer::chunks::ChunkTable;
use tarpon_oci::{Digest, limits};
use tarpon_store::LoadedImage;
use tarpon_tree::Kind;
use tarpon_tree::erofs::{Image, ImageError, Nid};

/// Adds a path and a layer to each touch of an object of the image, as far as they can be told.
pub(super) fn add(trace: &mut Trace, image: LoadedImage) {
    let table = ChunkTable::open(image.chunks).ok();
    let mut paths: HashMap<ObjectId, String> = HashMap::new();
    if let Ok(tree) = Image::open(image.tree) {
        let _as_far_as_it_goes = name(&tree, tree.root(), &mut Vec::new(), &mut paths);
    }
    for touch in &mut trace.touches {
        touch.path = paths.get(&touch.object).cloned();
        touch.layer = table.as_ref().and_then(|table| layer_of(table, &touch.object));
    }
}

fn layer_of<B: AsRef<[u8]>>(table: &ChunkTable<B>, object: &ObjectId) -> Option<Digest> {
    let chunk = table.chunk(table.find(object)?.chunks.start)?;
    Some(table.layer(chunk.layer)?.blob.digest)
}

/// Names the objects below a directory; of several paths the first counts. Depth is bounded by that of paths.
fn name<B: AsRef<[u8]>>(
    tree: &Image<B>,
    directory: Nid,
    path: &mut Vec<u8>,
    paths: &mut HashMap<ObjectId, String>,
) -> Result<(), ImageError> {
    let length = path.len();
    if length > limits::PATH_BYTES {
        return Ok(());
    }
    for entry in tree.read_dir(directory, 0)? {
        let entry = entry?;
        if matches!(entry.name, b"." | b"..") {
            continue;
        }
        path.push(b'/');
        path.extend_from_slice(entry.name);
        match entry.kind {
            Kind::Directory => name(tree, entry.nid, path, paths)?,
            Kind::File => {
                if let Some(object) = tree.object(entry.nid)? {
                    paths.entry(object).or_insert_with(|| String::from_utf8_lossy(path).into_owned());
                }
            }
            _ => {}
        }
        path.truncate(length);
    }
    Ok(())
}
