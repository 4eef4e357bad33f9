//! The images that are registered, and what their chunk tables say about an object or a place.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use tarpon_layer::ObjectId;
use tarpon_layer::chunks::{ChunkTable, ObjectEntry};
use tarpon_oci::Digest;

use crate::BlobSource;
use crate::lanes::Budget;
use crate::stats::Tally;

/// Names an image among those of one [`crate::Fetcher`]; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ImageId(u64);

/// A registered image.
pub(crate) struct Image {
    pub(crate) id: ImageId,
    pub(crate) name: Arc<str>,
    pub(crate) table: ChunkTable<Bytes>,
    pub(crate) source: Arc<dyn BlobSource>,
    pub(crate) budget: Budget,
    pub(crate) tally: Tally,
}

/// Sources that one request tries in turn.
const SOURCES: usize = 8;

/// All registered images, in the order in which they came.
#[derive(Default)]
pub(crate) struct Images {
    list: RwLock<(u64, Vec<Arc<Image>>)>,
}

impl Images {
    /// Registers the image that `make` builds around its new name.
    pub(crate) fn add(&self, make: impl FnOnce(ImageId) -> Image) -> Arc<Image> {
        let mut list = self.list.write();
        list.0 += 1;
        let image = Arc::new(make(ImageId(list.0)));
        list.1.push(image.clone());
        image
    }

    pub(crate) fn remove(&self, id: ImageId) {
        self.list.write().1.retain(|image| image.id != id);
    }

    /// The images that have the object. The order is always the same, so that readers of different images ask for
    /// the same bytes of the same image and share one request.
    pub(crate) fn holding(&self, object: &ObjectId) -> Vec<(Arc<Image>, ObjectEntry)> {
        let list = self.list.read();
        list.1.iter().filter_map(|image| Some((image.clone(), image.table.find(object)?))).take(SOURCES).collect()
    }

    /// The first of [`Images::holding`].
    pub(crate) fn first_holding(&self, object: &ObjectId) -> Option<(Arc<Image>, ObjectEntry)> {
        let list = self.list.read();
        list.1.iter().find_map(|image| Some((image.clone(), image.table.find(object)?)))
    }

    /// The images whose sources have the layer: `first`, then the others.
    pub(crate) fn serving(&self, layer: &Digest, first: &Arc<Image>) -> Vec<Arc<Image>> {
        let list = self.list.read();
        let others = list.1.iter().filter(|image| image.id != first.id && image.has_layer(layer)).cloned();
        std::iter::once(first.clone()).chain(others).take(SOURCES).collect()
    }
}

impl Image {
    fn has_layer(&self, layer: &Digest) -> bool {
        (0..self.table.layer_count())
            .any(|number| self.table.layer(number).is_some_and(|known| known.blob.digest == *layer))
    }
}
