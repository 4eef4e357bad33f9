//! [`Limits`]: when a holder stops waiting; [`Failures`]: successors that died.

use std::time::{Duration, Instant};

/// Limits of a holder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long readers wait for a successor that serves. It starts in milliseconds, and with many mounts in tenths of a
    /// second; a reader that waits longer than this would rather have an error.
    pub(crate) successor: Duration,
    /// How long a server may be silent. It sends a message every two seconds from a thread of its own, so it is stopped or
    /// broken then, and its readers have waited long enough.
    pub(crate) silence: Duration,
    /// How long after an announced end the announced successor may take until another one is started.
    pub(crate) hand_over: Duration,
    /// Successors that die within this time are counted …
    pub(crate) failures_within: Duration,
}

/// … and so many of them are enough.
pub(crate) const MAX_FAILURES: usize = 3;

impl Default for Limits {
    fn default() -> Self {
        Self {
            successor: Duration::from_secs(10),
            silence: Duration::from_secs(15),
            hand_over: Duration::from_secs(5),
            failures_within: Duration::from_secs(30),
        }
    }
}

/// The last successors that died before they served.
#[derive(Debug, Default)]
pub(crate) struct Failures([Option<Instant>; MAX_FAILURES]);

impl Failures {
    /// Counts one. Returns whether there are too many.
    pub(crate) fn count(&mut self, now: Instant, within: Duration) -> bool {
        self.0.rotate_left(1);
        self.0[MAX_FAILURES - 1] = Some(now);
        self.0.iter().all(|failure| failure.is_some_and(|at| now.duration_since(at) <= within))
    }

    /// A successor serves.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_failures_are_too_many_if_they_are_close() {
        let (start, second, within) = (Instant::now(), Duration::from_secs(1), Duration::from_secs(30));
        let mut failures = Failures::default();
        let counted = [0, 20, 31, 60, 61].map(|at| failures.count(start + second * at, within));
        assert_eq!(counted, [false, false, false, false, true]);
        failures.clear();
        assert!(!failures.count(start + second * 62, within));
    }
}
