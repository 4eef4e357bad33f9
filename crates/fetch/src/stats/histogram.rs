//! Histogram of the time that readers waited.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Upper ends of the buckets, in milliseconds. One more bucket takes longer waits. The range is from a round trip in a data centre
/// to what a user takes for a hang, with three or four buckets per decade: enough to tell a cache beside the host from a registry
/// overseas, and that from a source that fails. A read ends after 30 s at the latest.
pub const STALL_MILLIS: [u64; 13] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000];

/// Number of buckets.
const BUCKETS: usize = STALL_MILLIS.len() + 1;

/// Waits by their length, as they were at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram {
    /// Ascending. Empty if nothing was counted.
    pub buckets: Vec<Bucket>,
}

/// The waits of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// Longest wait of this bucket, above that of the bucket before. `None`: unbounded.
    pub up_to_millis: Option<u64>,
    /// Number of waits.
    pub count: u64,
}

/// Counts waits by their length.
#[derive(Default)]
pub(crate) struct Waits {
    buckets: [AtomicU64; BUCKETS],
    micros: AtomicU64,
    slowest_micros: AtomicU64,
}

impl Waits {
    pub(crate) fn count(&self, waited: Duration) {
        let micros = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        let bucket = STALL_MILLIS.partition_point(|millis| Duration::from_millis(*millis) < waited);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.micros.fetch_add(micros, Relaxed);
        self.slowest_micros.fetch_max(micros, Relaxed);
    }

    /// Adds what an earlier process counted.
    pub(super) fn continue_from(&self, histogram: &Histogram, millis: u64, slowest_millis: u64) {
        for bucket in &histogram.buckets {
            let longest = bucket.up_to_millis.unwrap_or(u64::MAX);
            let place = STALL_MILLIS.partition_point(|millis| *millis < longest);
            self.buckets[place].fetch_add(bucket.count, Relaxed);
        }
        self.micros.fetch_add(millis.saturating_mul(1000), Relaxed);
        self.slowest_micros.fetch_max(slowest_millis.saturating_mul(1000), Relaxed);
    }

    /// Sum of all waits.
    pub(crate) fn millis(&self) -> u64 {
        self.micros.load(Relaxed) / 1000
    }

    pub(crate) fn slowest_millis(&self) -> u64 {
        self.slowest_micros.load(Relaxed) / 1000
    }

    pub(crate) fn histogram(&self) -> Histogram {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        if counts.iter().all(|count| *count == 0) {
            return Histogram::default();
        }
        let ends = STALL_MILLIS.iter().map(|millis| Some(*millis)).chain([None]);
        let buckets = ends.zip(counts).map(|(up_to_millis, count)| Bucket { up_to_millis, count });
        Histogram { buckets: buckets.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The buckets that are not empty.
    fn filled(waits: &Waits) -> Vec<(Option<u64>, u64)> {
        let all = waits.histogram().buckets;
        all.iter().filter(|bucket| bucket.count > 0).map(|bucket| (bucket.up_to_millis, bucket.count)).collect()
    }

    #[test]
    fn a_wait_is_in_the_first_bucket_that_is_long_enough() {
        let waits = Waits::default();
        for micros in [0, 1000, 1001, 5000, 10_000_000, 10_000_001, 1 << 40] {
            waits.count(Duration::from_micros(micros));
        }
        assert_eq!(filled(&waits), [(Some(1), 2), (Some(2), 1), (Some(5), 1), (Some(10_000), 1), (None, 2)]);
        assert_eq!(waits.slowest_millis(), (1 << 40) / 1000);
    }

    #[test]
    fn short_waits_add_up() {
        let waits = Waits::default();
        (0..3000).for_each(|_| waits.count(Duration::from_micros(500)));
        assert_eq!((waits.millis(), waits.slowest_millis()), (1500, 0));
    }

    #[test]
    fn nothing_counted_is_an_empty_histogram() {
        assert_eq!(serde_json::to_string(&Waits::default().histogram()).unwrap(), "[]");
    }
}
