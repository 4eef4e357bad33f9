//! [`Distrusted`]: blobs of which wrong bytes were received.

use std::collections::HashSet;

use parking_lot::Mutex;
use tarpon_oci::{Digest, limits};

/// Most blobs that are remembered: the layers of an image and its boot packs. Beyond that all of them may be sent by mirrors again.
const MOST: usize = 2 * limits::LAYERS;

/// Blobs of which wrong bytes were received. Requests for them name that, so that another process asks another mirror.
#[derive(Debug, Default)]
pub(crate) struct Distrusted(Mutex<HashSet<Digest>>);

impl Distrusted {
    pub(crate) fn contains(&self, blob: &Digest) -> bool {
        self.0.lock().contains(blob)
    }

    /// Returns whether it was not known before.
    pub(crate) fn add(&self, blob: &Digest) -> bool {
        let mut blobs = self.0.lock();
        if blobs.len() >= MOST {
            blobs.clear();
        }
        blobs.insert(*blob)
    }
}
