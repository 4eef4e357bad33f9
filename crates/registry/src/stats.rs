//! Network counters: of a mount, and of each endpoint of its image.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tarpon_blob::SourceError;
use tokio::time::Instant;

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
        Self { requests: self.requests.saturating_add(other.requests), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// What one endpoint of an image was asked for, and what it sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointAccount {
    /// Its host, as `HOST[:PORT]`.
    pub host: String,
    /// Its counters.
    pub counts: EndpointCounts,
    /// How long it is still not asked, because it failed. Nothing: the next request finds out whether it answers again.
    pub rest: Option<Duration>,
    /// Why it failed the last time, in one line.
    pub last_failure: Option<String>,
}

/// Counters of one endpoint of an image. What it redirects to counts for it, and so do its tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointCounts {
    /// Requests sent to it.
    pub requests: u64,
    /// Bytes of bodies received from it.
    pub bytes: u64,
    /// How long all requests together waited, each from when it was sent to the head of its response, or to its failure.
    pub wait_millis: u64,
    /// What it did not answer with all its attempts, or answered without what was requested, and bodies that broke off.
    pub failures: u64,
}

impl EndpointCounts {
    /// The sum of both. Numbers may come from a process that is not trusted, so it ends at the largest number.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// The higher one of each counter.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        self.with(other, u64::max)
    }

    fn with(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            requests: combine(self.requests, other.requests),
            bytes: combine(self.bytes, other.bytes),
            wait_millis: combine(self.wait_millis, other.wait_millis),
            failures: combine(self.failures, other.failures),
        }
    }

    /// Whether nothing was counted.
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }
}

impl EndpointAccount {
    /// Most characters of a failure: it names a path with a digest, and a cause.
    pub const FAILURE_CHARS: usize = 300;
}

/// Counts for [`Stats`] and [`EndpointAccount`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: AtomicU64,
    bytes: AtomicU64,
    wait_micros: AtomicU64,
    failures: AtomicU64,
    last_failure: Mutex<Option<Box<str>>>,
}

/// A request that waits for its answer. Its end is counted, however it comes: also if the request is cancelled.
pub(crate) struct Waiting<'a> {
    counters: &'a Counters,
    began: Instant,
}

impl Counters {
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// A request is sent.
    pub(crate) fn sent(&self) -> Waiting<'_> {
        Waiting { counters: self, began: Instant::now() }
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Something was not answered, or was answered wrong.
    pub(crate) fn failed(&self, error: &SourceError) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let text: String = error.to_string().chars().take(EndpointAccount::FAILURE_CHARS).collect();
        *self.last_failure.lock() = Some(text.into());
    }

    pub(crate) fn read(&self) -> Stats {
        Stats { requests: self.requests.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }

    /// The account of an endpoint that rests so long.
    pub(crate) fn account(&self, host: &str, rest: Option<Duration>) -> EndpointAccount {
        let Stats { requests, bytes } = self.read();
        let counts = EndpointCounts {
            requests,
            bytes,
            wait_millis: self.wait_micros.load(Ordering::Relaxed) / 1_000,
            failures: self.failures.load(Ordering::Relaxed),
        };
        let last_failure = self.last_failure.lock().as_deref().map(str::to_owned);
        EndpointAccount { host: host.to_owned(), counts, rest, last_failure }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waited = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counters.wait_micros.fetch_add(waited, Ordering::Relaxed);
        self.counters.request();
    }
}
