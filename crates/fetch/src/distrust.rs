//! [`Distrusted`]: layers of an image that are no longer served.
//!
//! Each chunk matched its digest, and the digest came from the author of the index. Once the whole layer was read and the index found to be
//! wrong, its other digests prove nothing. Complete objects were hashed as a whole and stay readable.

use std::sync::Arc;

use parking_lot::RwLock;
use tarpon_oci::Digest;

/// The layers of one image that are not served, each with the reason. Nearly always none.
#[derive(Default)]
pub(crate) struct Distrusted(RwLock<Vec<(Digest, Arc<str>)>>);

impl Distrusted {
    /// Returns `false` if the layer was in the list already.
    pub(crate) fn add(&self, layer: &Digest, reason: &str) -> bool {
        let mut layers = self.0.write();
        let is_new = !layers.iter().any(|(known, _)| known == layer);
        if is_new {
            layers.push((*layer, reason.into()));
        }
        is_new
    }

    pub(crate) fn reason(&self, layer: &Digest) -> Option<Arc<str>> {
        self.0.read().iter().find(|(known, _)| known == layer).map(|(_, reason)| reason.clone())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }
}
