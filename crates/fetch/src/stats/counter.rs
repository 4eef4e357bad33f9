//! [`Counter`], and those of the bytes that were fetched before a reader requested them.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

/// A number that several threads change.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    pub(super) fn take(&self, amount: u64) {
        self.0.fetch_sub(amount, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Bytes that were fetched early in one lane, decoded: `used + unused + unknown = brought`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Early {
    /// Bytes of the fetched chunks that were not local before.
    pub brought: u64,
    /// Bytes of these chunks that a reader used: from the store later, or by joining the request.
    pub used: u64,
    /// Bytes of these chunks that no reader has used so far.
    pub unused: u64,
    /// Bytes of complete objects that the kernel may read without a request (mode `native`), and that had not been read through FUSE before.
    pub unknown: u64,
}

/// The counters of one lane.
#[derive(Default)]
pub(crate) struct EarlyCounters {
    pub(crate) brought: Counter,
    pub(crate) used: Counter,
    pub(crate) unknown: Counter,
}

impl EarlyCounters {
    /// Adds what an earlier process counted. Whether its unused bytes are used from now on cannot be seen.
    pub(super) fn continue_from(&self, earlier: &Early) {
        self.brought.add(earlier.brought);
        self.used.add(earlier.used);
        self.unknown.add(earlier.unknown.saturating_add(earlier.unused));
    }

    pub(crate) fn snapshot(&self) -> Early {
        // In this order, concurrent counting cannot make `brought` smaller than `used`.
        let (used, unknown) = (self.used.get(), self.unknown.get());
        let brought = self.brought.get().max(used.saturating_add(unknown));
        Early { brought, used, unused: brought - used - unknown, unknown }
    }
}
