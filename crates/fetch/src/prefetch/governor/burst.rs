//! Measures how long the readers of an image have waited recently.

use std::time::Duration;

use tokio::time::Instant;

/// While no reader waits, the account loses this part of the time: a program that waits for less than a tenth of its time is not
/// worth a download, however long it runs.
pub(crate) const LEAK: u32 = 10;

/// An account of the time in which at least one reader waited. Readers that wait at once count once, because a download would end
/// the wait of all of them.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    pub(crate) stalled: Duration,
    /// Reads that waited.
    pub(crate) reads: u32,
    /// Bytes that arrived.
    pub(crate) brought: u64,
    waiting: u32,
    /// The time up to which the account is current.
    at: Option<Instant>,
    /// When a reader last began or ceased to wait.
    last: Option<Instant>,
}

impl Burst {
    /// Records that a reader begins to wait.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.advance(now);
        self.waiting += 1;
        self.last = Some(now);
    }

    /// Records that a reader stops waiting.
    pub(crate) fn end(&mut self, now: Instant) {
        self.advance(now);
        self.waiting = self.waiting.saturating_sub(1);
        self.reads = self.reads.saturating_add(1);
        self.last = Some(now);
    }

    /// Clears the account: the waits so far are no evidence.
    pub(crate) fn forget(&mut self) {
        (self.stalled, self.reads, self.brought) = (Duration::ZERO, 0, 0);
    }

    /// Time since a reader last waited.
    pub(crate) fn quiet_for(&self, now: Instant) -> Duration {
        match self.last {
            Some(last) if self.waiting == 0 => now.saturating_duration_since(last),
            Some(_) => Duration::ZERO,
            None => Duration::MAX,
        }
    }

    fn advance(&mut self, now: Instant) {
        let passed = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.at = Some(now);
        if self.waiting > 0 {
            self.stalled = self.stalled.saturating_add(passed);
            return;
        }
        self.stalled = self.stalled.saturating_sub(passed / LEAK);
        if self.stalled.is_zero() {
            self.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn two_readers_that_wait_at_once_count_once() {
        let (mut burst, start) = (Burst::default(), Instant::now());
        burst.begin(start);
        burst.begin(start + SECOND);
        burst.end(start + SECOND * 2);
        burst.end(start + SECOND * 3);
        assert_eq!((burst.stalled, burst.reads), (SECOND * 3, 2));
    }

    #[test]
    fn a_program_that_waits_for_a_twentieth_of_its_time_never_triggers_a_download() {
        let (mut burst, mut now) = (Burst::default(), Instant::now());
        for _ in 0..1_000 {
            burst.begin(now);
            now += SECOND / 20;
            burst.end(now);
            now += SECOND;
        }
        assert!(burst.stalled < SECOND, "{burst:?}");
    }

    #[test]
    fn a_burst_is_forgotten_when_it_was_quiet_for_ten_times_as_long() {
        let (mut burst, start) = (Burst::default(), Instant::now());
        burst.begin(start);
        burst.brought = 5;
        burst.end(start + SECOND);
        assert_eq!(burst.quiet_for(start + SECOND * 3), SECOND * 2);
        burst.begin(start + SECOND * 11);
        assert_eq!(
            (burst.stalled, burst.brought, burst.quiet_for(start + SECOND * 99)),
            (Duration::ZERO, 0, Duration::ZERO)
        );
    }
}
