//! [`ImageState`]: what all requests of an image share.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_oci::Blob;
use tarpon_registry::Stats;

use crate::message::{BlobRequest, ImageName, Totals};
use crate::slot::Slot;

/// What all requests of an image share.
#[derive(Debug)]
pub(crate) struct ImageState {
    pub(crate) slot: Arc<Slot>,
    name: ImageName,
    counted: Mutex<Counted>,
}

/// What was transferred for the image.
#[derive(Debug, Default)]
struct Counted {
    /// In earlier processes.
    before: Stats,
    /// In the process of this generation.
    now: Totals,
    generation: u64,
}

impl ImageState {
    pub(crate) fn new(slot: Arc<Slot>, name: ImageName) -> Self {
        Self { slot, name, counted: Mutex::default() }
    }

    /// What was transferred for the image, in all processes.
    pub(crate) fn stats(&self) -> Stats {
        let counted = self.counted.lock();
        sum(counted.before, counted.now.stats())
    }

    pub(crate) fn ignores_ranges(&self) -> bool {
        self.counted.lock().now.ignores_ranges
    }

    pub(crate) fn request(&self, blob: Blob, range: Range<u64>, probe: bool) -> BlobRequest {
        BlobRequest { image: self.name.clone(), blob, range, probe }
    }

    /// Takes over the totals that a process of this generation reported.
    pub(crate) fn count(&self, generation: u64, totals: Totals) {
        let mut counted = self.counted.lock();
        if generation > counted.generation {
            let before = sum(counted.before, counted.now.stats());
            *counted = Counted { before, now: totals, generation };
        } else if generation == counted.generation && totals.requests >= counted.now.requests {
            counted.now = totals;
        }
    }
}

impl Drop for ImageState {
    fn drop(&mut self) {
        self.slot.forget(self.name.number);
    }
}

/// The numbers come from a worker.
fn sum(one: Stats, other: Stats) -> Stats {
    Stats { requests: one.requests.saturating_add(other.requests), bytes: one.bytes.saturating_add(other.bytes) }
}
