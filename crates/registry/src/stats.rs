//! Network counters of a mount.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one [`crate::Repository`], since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests sent, tokens and redirects included. For layouts and archives: reads of a blob.
    pub requests: u64,
    /// Bytes of bodies received.
    pub bytes: u64,
}

impl Add for Stats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, bytes: self.bytes + other.bytes }
    }
}

/// Counts for [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Stats {
        Stats { requests: self.requests.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}
