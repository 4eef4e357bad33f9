//! [`ImageState`]: what all requests of an image share.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_oci::{Blob, Digest};
use tarpon_registry::{EndpointAccount, Stats};

use crate::accounts::Accounts;
use crate::distrusted::Distrusted;
use crate::message::{BlobRequest, ImageName, Totals};
use crate::slot::Slot;

/// What all requests of an image share.
#[derive(Debug)]
pub(crate) struct ImageState {
    pub(crate) slot: Arc<Slot>,
    name: ImageName,
    counted: Mutex<Counted>,
    distrusted: Distrusted,
}

/// What was transferred for the image.
#[derive(Debug)]
struct Counted {
    /// In earlier processes.
    before: Stats,
    /// In the process of this generation.
    now: Totals,
    generation: u64,
    /// What this process has sent and received itself: a worker reports at the head and the end of each response, and some do not end.
    own: Stats,
    endpoints: Accounts,
}

impl ImageState {
    pub(crate) fn new(slot: Arc<Slot>, name: ImageName) -> Self {
        let (before, now, generation, own) = Default::default();
        let counted = Counted { before, now, generation, own, endpoints: Accounts::new(name.hosts()) };
        Self { slot, name, counted: Mutex::new(counted), distrusted: Distrusted::default() }
    }

    /// What was transferred for the image, in all processes.
    pub(crate) fn stats(&self) -> Stats {
        let counted = self.counted.lock();
        most(sum(counted.before, counted.now.stats()), counted.own)
    }

    /// What was counted for each endpoint, in all processes.
    pub(crate) fn accounts(&self) -> Vec<EndpointAccount> {
        self.counted.lock().endpoints.shown()
    }

    pub(crate) fn has_tier(&self) -> bool {
        self.name.tier.is_some()
    }

    pub(crate) fn ignores_ranges(&self) -> bool {
        self.counted.lock().now.ignores_ranges
    }

    /// Has the worker connect to the registry, after it was started if none runs. Errors show with the first request.
    pub(crate) fn get_ready(&self) {
        if let Err(error) = self.slot.process().and_then(|process| process.get_ready(&self.name)) {
            tracing::debug!(%error, "the worker does not connect ahead");
        }
    }

    pub(crate) fn request(&self, blob: Blob, range: Range<u64>, probe: bool) -> BlobRequest {
        let distrusted = self.distrusted.contains(&blob.digest);
        BlobRequest { image: self.name.clone(), blob, range, probe, distrusted }
    }

    /// Returns whether another host will be asked for the blob.
    pub(crate) fn distrust(&self, blob: &Digest) -> bool {
        let hosts = self.name.endpoints.len() + usize::from(self.name.tier.is_some());
        hosts > 1 && self.distrusted.add(blob)
    }

    /// Takes over the totals that a process of this generation reported.
    pub(crate) fn count(&self, generation: u64, mut totals: Totals) {
        let mut counted = self.counted.lock();
        if generation < counted.generation {
            return;
        }
        if generation > counted.generation {
            counted.before = sum(counted.before, counted.now.stats());
            (counted.now, counted.generation) = (Totals::default(), generation);
            counted.endpoints.begin_process();
        }
        counted.endpoints.report(std::mem::take(&mut totals.endpoints));
        let Stats { requests, bytes } = most(counted.now.stats(), totals.stats());
        counted.now = Totals { requests, bytes, ..totals };
    }

    /// Counts a request that was sent to a worker.
    pub(crate) fn requested(&self) {
        self.counted.lock().own.requests += 1;
    }

    /// Counts bytes of a body.
    pub(crate) fn received(&self, bytes: usize) {
        self.counted.lock().own.bytes += bytes as u64;
    }
}

impl Drop for ImageState {
    fn drop(&mut self) {
        self.slot.forget(self.name.number);
    }
}

fn most(one: Stats, other: Stats) -> Stats {
    Stats { requests: one.requests.max(other.requests), bytes: one.bytes.max(other.bytes) }
}

/// The numbers come from a worker.
fn sum(one: Stats, other: Stats) -> Stats {
    Stats { requests: one.requests.saturating_add(other.requests), bytes: one.bytes.saturating_add(other.bytes) }
}
