//! Layers that an image is found to lie about, or that are not what they should be: nothing more is taken out of them.
//!
//! Each chunk matched its digest, and the digest came from whoever made the index; once somebody has seen the whole layer
//! and found that the index says what is not so, its other digests are worth nothing. Objects that are complete were
//! hashed as a whole: they are what their names say, whoever named them, and stay readable.

use std::sync::Arc;

use parking_lot::RwLock;
use tarpon_layer::ObjectId;
use tarpon_layer::chunks::ObjectEntry;
use tarpon_oci::Digest;

use crate::ReadError;
use crate::image::Image;

/// The layers of one image that are not served, and why. Nearly always none.
#[derive(Default)]
pub(crate) struct Distrusted(RwLock<Vec<(Digest, Arc<str>)>>);

impl Distrusted {
    /// `false`: it was known.
    pub(crate) fn add(&self, layer: &Digest, reason: &str) -> bool {
        let mut layers = self.0.write();
        let is_new = !layers.iter().any(|(known, _)| known == layer);
        if is_new {
            layers.push((*layer, reason.into()));
        }
        is_new
    }

    fn reason(&self, layer: &Digest) -> Option<Arc<str>> {
        self.0.read().iter().find(|(known, _)| known == layer).map(|(_, reason)| reason.clone())
    }

    fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }
}

impl Image {
    /// What the image says of the object, unless that is not believed any more.
    pub(crate) fn claim(&self, object: &ObjectId) -> Option<ObjectEntry> {
        let entry = self.table.find(object)?;
        self.distrust_of(&entry).is_none().then_some(entry)
    }

    /// Whether nothing more is taken out of the layer with this number.
    pub(crate) fn is_distrusted(&self, layer: u16) -> bool {
        if self.distrusted.is_empty() {
            return false;
        }
        self.table.layer(layer).is_some_and(|layer| self.distrusted.reason(&layer.blob.digest).is_some())
    }

    /// Why the object is not served: a layer that it lies in, and the reason.
    fn distrust_of(&self, entry: &ObjectEntry) -> Option<(Digest, Arc<str>)> {
        if self.distrusted.is_empty() {
            return None;
        }
        entry.chunks.clone().find_map(|number| {
            let chunk = self.table.chunk(number)?;
            let layer = self.table.layer(chunk.layer)?.blob.digest;
            Some((layer, self.distrusted.reason(&layer)?))
        })
    }

    /// The error of whoever reads an object that is not served, counted.
    pub(crate) fn refuse_distrusted(&self, object: &ObjectId) -> ReadError {
        let distrust = self.table.find(object).and_then(|entry| self.distrust_of(&entry));
        let Some((layer, reason)) = distrust else { return ReadError::UnknownObject(*object) };
        let error = ReadError::Distrusted { object: *object, image: self.name.clone(), layer, reason };
        self.tally.image.failed_reads.add(1);
        self.tally.failed(&error);
        error
    }
}
