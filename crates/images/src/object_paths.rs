//! Paths and layers of objects, for human readers, who know a file by its name.

use std::collections::{HashMap, HashSet};

use tarpon_layer::ObjectId;
use tarpon_layer::chunks::ChunkTable;
use tarpon_oci::Digest;
use tarpon_store::{LoadedImage, MappedFile};
use tarpon_trace::Trace;
use tarpon_tree::Line;
use tarpon_tree::erofs::Image;

/// Places of some objects of an image, as far as they are known.
pub struct Hints {
    paths: HashMap<ObjectId, String>,
    table: Option<ChunkTable<MappedFile>>,
}

impl Hints {
    /// Finds the places of these objects.
    pub fn of(image: LoadedImage, wanted: &HashSet<ObjectId>) -> Self {
        let mut paths: HashMap<ObjectId, String> = HashMap::new();
        if let Ok(tree) = Image::open(image.tree) {
            // Of several paths the first counts.
            let mut name = |line: Line<'_>| {
                if let Some(object) = line.object.filter(|object| wanted.contains(object)) {
                    paths.entry(object).or_insert_with(|| format!("/{}", String::from_utf8_lossy(line.path)));
                }
            };
            let _as_far_as_it_goes = tree.lines(&mut name);
        }
        Self { paths, table: ChunkTable::open(image.chunks).ok() }
    }

    /// The object's path in the image.
    pub fn path(&self, object: &ObjectId) -> Option<String> {
        self.paths.get(object).cloned()
    }

    /// The layer that contains the object.
    pub fn layer(&self, object: &ObjectId) -> Option<Digest> {
        let table = self.table.as_ref()?;
        let chunk = table.chunk(table.find(object)?.chunks.start)?;
        Some(table.layer(chunk.layer)?.blob.digest)
    }
}

/// Adds a path and a layer to each touch of an object of the image, as far as they are known.
pub fn add(trace: &mut Trace, image: LoadedImage) {
    let hints = Hints::of(image, &trace.touches.iter().map(|touch| touch.object).collect());
    for touch in &mut trace.touches {
        touch.path = hints.path(&touch.object);
        touch.layer = hints.layer(&touch.object);
    }
}
