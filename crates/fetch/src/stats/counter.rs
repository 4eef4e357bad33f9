//! [`Counter`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
