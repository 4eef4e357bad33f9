//! The counters of an image and of the host, and their [`Stats`].

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::counter::{Counter, Early, EarlyCounters};
use super::histogram::{Histogram, Waits};
use crate::lanes::Lane;

/// Counters of one image or of the host, as they were at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Reads that were answered with bytes.
    pub reads: u64,
    /// Reads that needed nothing from a source.
    pub hits: u64,
    /// Bytes returned to readers.
    pub bytes_served: u64,
    /// Requests to the source.
    pub requests: u64,
    /// Bytes used of the answers of the source: for readers, from boot packs, and ahead of readers. Without those that complete the
    /// image in the background.
    pub bytes_fetched: u64,
    /// Those of them that readers requested.
    pub bytes_demand: u64,
    /// Those of them that a boot pack or a hint fetched before a reader requested them (or while one joined).
    pub bytes_trace: u64,
    /// Those of them that were read ahead of a sequential reader, or came along with the request of a reader.
    pub bytes_ahead: u64,
    /// Those of them that a download of the rest of an image fetched.
    pub bytes_whole: u64,
    /// Whole downloads of the rest of an image that were started because readers had waited too long for parts of it.
    pub whole_downloads: u64,
    /// Bytes of layers that the completion in the background streamed. They are on top of `bytes_fetched`.
    pub bytes_backfill: u64,
    /// Use of the bytes that the boot pack fetched.
    pub early_trace: Early,
    /// Use of the bytes that were read ahead.
    pub early_ahead: Early,
    /// Reads that had to wait for a source.
    pub stalls: u64,
    /// Milliseconds that reads waited for a source, summed over all reads.
    pub stall_millis: u64,
    /// The longest of these waits.
    pub slowest_stall_millis: u64,
    /// Distribution of these waits.
    pub stall_histogram: Histogram,
    /// Reads that failed; for an image: that its source could not answer.
    pub failed_reads: u64,
    /// Pieces whose bytes did not match their digest.
    pub digest_failures: u64,
    /// Objects of which every chunk matched and the whole did not.
    pub poisoned_objects: u64,
    /// Layers that are no longer served, because an index described them wrongly.
    pub distrusted_layers: u64,
    /// Chunks that the store did not take.
    pub bypassed_chunks: u64,
    /// Requests under way. Zero when idle.
    pub requests_in_flight: u64,
    /// Encoded bytes that requests under way will deliver.
    pub bytes_in_flight: u64,
    /// The last failure, in one line.
    pub last_error: Option<String>,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) reads: Counter,
    pub(crate) hits: Counter,
    pub(crate) bytes_served: Counter,
    pub(crate) requests: Counter,
    bytes_fetched: Counter,
    bytes_demand: Counter,
    bytes_trace: Counter,
    bytes_ahead: Counter,
    bytes_whole: Counter,
    pub(crate) whole_downloads: Counter,
    pub(crate) bytes_backfill: Counter,
    early_trace: EarlyCounters,
    early_ahead: EarlyCounters,
    pub(crate) stalls: Counter,
    waits: Waits,
    pub(crate) failed_reads: Counter,
    pub(crate) digest_failures: Counter,
    pub(crate) poisoned_objects: Counter,
    pub(crate) distrusted_layers: Counter,
    pub(crate) bypassed_chunks: Counter,
    requests_in_flight: Counter,
    bytes_in_flight: Counter,
    last_error: Mutex<Option<String>>,
}

impl Counters {
    pub(crate) fn failed(&self, error: &dyn std::fmt::Display) {
        *self.last_error.lock() = Some(error.to_string());
    }

    /// Counters of the bytes fetched early in this lane. None for demand.
    pub(crate) fn early(&self, lane: Lane) -> &EarlyCounters {
        if lane == Lane::Trace { &self.early_trace } else { &self.early_ahead }
    }

    fn bytes_of(&self, lane: Lane) -> &Counter {
        match lane {
            Lane::Demand => &self.bytes_demand,
            Lane::Trace => &self.bytes_trace,
            Lane::Ahead => &self.bytes_ahead,
            Lane::Whole => &self.bytes_whole,
        }
    }

    /// Adds what an earlier process counted. Nothing is under way from then, and the chunks that it fetched early are not known any more.
    pub(crate) fn continue_from(&self, earlier: &Stats) {
        for (counter, count) in [
            (&self.reads, earlier.reads),
            (&self.hits, earlier.hits),
            (&self.bytes_served, earlier.bytes_served),
            (&self.requests, earlier.requests),
            (&self.bytes_fetched, earlier.bytes_fetched),
            (&self.bytes_demand, earlier.bytes_demand),
            (&self.bytes_trace, earlier.bytes_trace),
            (&self.bytes_ahead, earlier.bytes_ahead),
            (&self.bytes_whole, earlier.bytes_whole),
            (&self.whole_downloads, earlier.whole_downloads),
            (&self.bytes_backfill, earlier.bytes_backfill),
            (&self.stalls, earlier.stalls),
            (&self.failed_reads, earlier.failed_reads),
            (&self.digest_failures, earlier.digest_failures),
            (&self.poisoned_objects, earlier.poisoned_objects),
            (&self.distrusted_layers, earlier.distrusted_layers),
            (&self.bypassed_chunks, earlier.bypassed_chunks),
        ] {
            counter.add(count);
        }
        self.early_trace.continue_from(&earlier.early_trace);
        self.early_ahead.continue_from(&earlier.early_ahead);
        self.waits.continue_from(&earlier.stall_histogram, earlier.stall_millis, earlier.slowest_stall_millis);
        let mut last_error = self.last_error.lock();
        *last_error = last_error.take().or_else(|| earlier.last_error.clone());
    }

    pub(crate) fn snapshot(&self) -> Stats {
        Stats {
            reads: self.reads.get(),
            hits: self.hits.get(),
            bytes_served: self.bytes_served.get(),
            requests: self.requests.get(),
            bytes_fetched: self.bytes_fetched.get(),
            bytes_demand: self.bytes_demand.get(),
            bytes_trace: self.bytes_trace.get(),
            bytes_ahead: self.bytes_ahead.get(),
            bytes_whole: self.bytes_whole.get(),
            whole_downloads: self.whole_downloads.get(),
            bytes_backfill: self.bytes_backfill.get(),
            early_trace: self.early_trace.snapshot(),
            early_ahead: self.early_ahead.snapshot(),
            stalls: self.stalls.get(),
            stall_millis: self.waits.millis(),
            slowest_stall_millis: self.waits.slowest_millis(),
            stall_histogram: self.waits.histogram(),
            failed_reads: self.failed_reads.get(),
            digest_failures: self.digest_failures.get(),
            poisoned_objects: self.poisoned_objects.get(),
            distrusted_layers: self.distrusted_layers.get(),
            bypassed_chunks: self.bypassed_chunks.get(),
            requests_in_flight: self.requests_in_flight.get(),
            bytes_in_flight: self.bytes_in_flight.get(),
            last_error: self.last_error.lock().clone(),
        }
    }
}

/// The counters that one event concerns: those of the image and those of the host.
#[derive(Clone)]
pub(crate) struct Tally {
    pub(crate) image: Arc<Counters>,
    pub(crate) host: Arc<Counters>,
}

impl Tally {
    /// Counts for the image and the host.
    pub(crate) fn add(&self, counter: impl Fn(&Counters) -> &Counter, amount: u64) {
        counter(&self.image).add(amount);
        counter(&self.host).add(amount);
    }

    /// Counts bytes that arrived for a request in this lane.
    pub(crate) fn fetched_for(&self, lane: Lane, bytes: usize) {
        self.add(|counters| &counters.bytes_fetched, bytes as u64);
        self.add(|counters| counters.bytes_of(lane), bytes as u64);
    }

    /// Remembers the failure for `status`.
    pub(crate) fn failed(&self, error: &dyn std::fmt::Display) {
        self.image.failed(error);
        self.host.failed(error);
    }

    /// Counts a read that was answered without waiting.
    pub(crate) fn served(&self, bytes: usize) {
        self.add(|counters| &counters.hits, 1);
        self.answered(bytes);
    }

    /// Counts a read that was answered after waiting for a source.
    pub(crate) fn served_late(&self, bytes: usize, waited: Duration) {
        self.stalled(waited);
        self.answered(bytes);
    }

    fn answered(&self, bytes: usize) {
        self.add(|counters| &counters.reads, 1);
        self.add(|counters| &counters.bytes_served, bytes as u64);
    }

    /// Counts a read that waited in vain for this image's source. Another image may have answered it.
    pub(crate) fn try_failed(&self, error: &dyn std::fmt::Display, waited: Duration) {
        self.stalled(waited);
        self.image.failed_reads.add(1);
        self.failed(error);
    }

    fn stalled(&self, waited: Duration) {
        self.add(|counters| &counters.stalls, 1);
        self.image.waits.count(waited);
        self.host.waits.count(waited);
    }

    /// Counts a request that is under way until the guard is dropped.
    pub(crate) fn in_flight(&self, bytes: u64) -> InFlight {
        self.add(|counters| &counters.requests_in_flight, 1);
        self.add(|counters| &counters.bytes_in_flight, bytes);
        InFlight { tally: self.clone(), bytes }
    }
}

/// A request under way, as the gauges see it.
pub(crate) struct InFlight {
    tally: Tally,
    bytes: u64,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for counters in [&self.tally.image, &self.tally.host] {
            counters.requests_in_flight.take(1);
            counters.bytes_in_flight.take(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_return_to_zero_when_the_guard_goes() {
        let tally = Tally { image: Arc::default(), host: Arc::default() };
        let first = tally.in_flight(10);
        let second = tally.in_flight(5);
        let now = tally.host.snapshot();
        assert_eq!((now.requests_in_flight, now.bytes_in_flight), (2, 15));
        drop((first, second));
        assert_eq!(tally.image.snapshot(), Stats::default());
    }

    #[test]
    fn counts_of_an_earlier_process_go_on_and_what_was_under_way_does_not() {
        let tally = || Tally { image: Arc::default(), host: Arc::default() };
        let earlier = tally();
        let _under_way = earlier.in_flight(10);
        earlier.served(7);
        earlier.served_late(5, Duration::from_millis(3));
        earlier.try_failed(&"no route", Duration::from_secs(20));
        earlier.fetched_for(Lane::Demand, 100);
        earlier.fetched_for(Lane::Trace, 50);
        earlier.add(|counters| &counters.bytes_backfill, 9);
        earlier.image.early_trace.brought.add(50);
        earlier.image.early_trace.used.add(20);
        let before = earlier.image.snapshot();

        let later = tally();
        later.image.continue_from(&before);
        let early_trace = Early { brought: 50, used: 20, unused: 0, unknown: 30 };
        let continued = Stats { requests_in_flight: 0, bytes_in_flight: 0, early_trace, ..before.clone() };
        assert_eq!(later.image.snapshot(), continued);
        later.served_late(5, Duration::from_millis(3));
        later.fetched_for(Lane::Demand, 1);
        let now = later.image.snapshot();
        assert_eq!((now.bytes_fetched, now.bytes_demand, now.reads, now.hits), (151, 101, 3, 1));
        let counts: Vec<u64> = now.stall_histogram.buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!((counts[2], counts[13], now.stall_millis, now.slowest_stall_millis), (2, 1, 20_006, 20_000));
    }

    #[test]
    fn waits_in_buckets_of_another_version_are_in_the_next_longer_one() {
        let bucket = |up_to_millis| super::super::histogram::Bucket { up_to_millis, count: 1 };
        let buckets = vec![bucket(Some(4)), bucket(Some(5)), bucket(Some(60_000)), bucket(None)];
        let counters = Counters::default();
        counters.continue_from(&Stats { stall_histogram: Histogram { buckets }, ..Stats::default() });
        let counts = counters.snapshot().stall_histogram.buckets.into_iter().map(|bucket| bucket.count);
        assert_eq!(counts.collect::<Vec<_>>(), [0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    }
}
