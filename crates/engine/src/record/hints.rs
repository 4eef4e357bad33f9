//! Paths and layers of what a trace touched: for people who read it.

use std::collections::HashMap;

use tarpon_fetch::trace::Trace;
use tarpon_layer::ObjectId;
use tarpon_layer::chunks::ChunkTable;
use tarpon_oci::Digest;
use tarpon_store::LoadedImage;
use tarpon_tree::Line;
use tarpon_tree::erofs::Image;

/// Adds a path and a layer to each touch of an object of the image, as far as they can be told.
pub(super) fn add(trace: &mut Trace, image: LoadedImage) {
    let table = ChunkTable::open(image.chunks).ok();
    let mut paths: HashMap<ObjectId, String> = HashMap::new();
    if let Ok(tree) = Image::open(image.tree) {
        // Of several paths the first counts.
        let mut name = |line: Line<'_>| {
            if let Some(object) = line.object {
                paths.entry(object).or_insert_with(|| format!("/{}", String::from_utf8_lossy(line.path)));
            }
        };
        let _as_far_as_it_goes = tree.lines(&mut name);
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
