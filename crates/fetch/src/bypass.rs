//! [`Bypass`]: serves chunks from memory while the store accepts nothing.

use bytes::Bytes;
use parking_lot::Mutex;
use tarpon_oci::Verified;
use tokio::time::Instant;

use crate::ids::ChunkName;
use crate::lru::Lru;

/// Chunks that the store did not accept, in a little memory.
pub(crate) struct Bypass {
    until: Mutex<Option<Instant>>,
    chunks: Mutex<Lru<ChunkName, Verified<Bytes>>>,
}

impl Bypass {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { until: Mutex::new(None), chunks: Mutex::new(Lru::new(bytes)) }
    }

    /// Whether the store refused a chunk recently: then nothing is fetched ahead.
    pub(crate) fn is_active(&self) -> bool {
        self.until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Activates it until `until`.
    pub(crate) fn activate(&self, until: Instant) {
        *self.until.lock() = Some(until);
    }

    /// A chunk that the store refused, if it is still in memory.
    pub(crate) fn chunk(&self, name: &ChunkName) -> Option<Verified<Bytes>> {
        let mut chunks = self.chunks.lock();
        if chunks.weight() == 0 { None } else { chunks.get(name).cloned() }
    }

    pub(crate) fn remember(&self, name: ChunkName, bytes: &Verified<Bytes>) {
        // A slice would keep the whole decoded piece in memory, uncounted.
        let copy = bytes.compact();
        let weight = copy.len() as u64;
        self.chunks.lock().insert(name, copy, weight);
    }
}
