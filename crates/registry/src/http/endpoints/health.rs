//! [`Health`]: whether a mirror is asked.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;
use tarpon_oci::{Digest, limits};
use tokio::time::Instant;

use crate::timing;

/// Most blobs that are remembered as missing: an image has at most as many layers. Beyond that all of them are asked for again.
const LACKING: usize = 2 * limits::LAYERS;

/// What is known about a mirror.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    condition: Condition,
    /// Blobs that it does not have, or has wrong.
    lacking: HashSet<Digest>,
}

#[derive(Debug, Default)]
enum Condition {
    #[default]
    Answers,
    /// It failed, and is not asked before the end of the pause.
    Rests { until: Instant, pause: Duration },
    /// The pause is over, and one request finds out whether it answers again.
    IsTried { until: Instant, pause: Duration },
}

impl Health {
    /// Whether the mirror is asked now, for a blob or for another thing. After a pause one request is admitted, and the others only
    /// after its answer.
    pub(super) fn admits(&self, blob: Option<&Digest>) -> bool {
        let mut state = self.0.lock();
        if blob.is_some_and(|blob| state.lacking.contains(blob)) {
            return false;
        }
        let now = Instant::now();
        match state.condition {
            Condition::Answers => true,
            Condition::Rests { until, .. } | Condition::IsTried { until, .. } if now < until => false,
            Condition::Rests { pause, .. } | Condition::IsTried { pause, .. } => {
                // A request that is cancelled reports nothing.
                state.condition = Condition::IsTried { until: now + timing::MIRROR, pause };
                true
            }
        }
    }

    pub(super) fn is_resting(&self) -> bool {
        self.rest().is_some()
    }

    /// How long it is still not asked; nothing from the end of its pause on until it answers again.
    pub(super) fn rest(&self) -> Option<Duration> {
        match self.0.lock().condition {
            Condition::Answers => None,
            Condition::Rests { until, .. } => Some(until.saturating_duration_since(Instant::now())),
            Condition::IsTried { .. } => Some(Duration::ZERO),
        }
    }

    pub(super) fn answered(&self) {
        self.0.lock().condition = Condition::Answers;
    }

    /// Returns the pause that follows a failure that took this long. It doubles with each failure, and is a multiple of that time.
    /// Requests that failed together count as one.
    pub(super) fn failed(&self, took: Duration) -> Duration {
        let mut state = self.0.lock();
        let now = Instant::now();
        let pause = match state.condition {
            Condition::Answers => timing::MIRROR_PAUSE,
            Condition::Rests { until, pause } if now < until => return pause,
            Condition::Rests { pause, .. } | Condition::IsTried { pause, .. } => pause * 2,
        };
        let pause = pause.max(took * timing::MIRROR_PAUSE_TIMES).min(timing::MIRROR_PAUSE_LONGEST);
        state.condition = Condition::Rests { until: now + pause, pause };
        pause
    }

    /// Notes that the mirror lacks the blob. Returns whether that was not known before.
    pub(super) fn note_lacking(&self, blob: &Digest) -> bool {
        let mut state = self.0.lock();
        if state.lacking.len() >= LACKING {
            state.lacking.clear();
        }
        state.lacking.insert(*blob)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_mirror_that_failed_rests_longer_each_time_until_it_answers() {
        let health = Health::default();
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(health.admits(None));
            assert_eq!(health.failed(Duration::ZERO), Duration::from_secs(seconds));
            assert_eq!(health.failed(Duration::ZERO), Duration::from_secs(seconds), "a request that began with it");
            tokio::time::advance(Duration::from_millis(seconds * 1_000 - 1)).await;
            assert!(!health.admits(None) && health.is_resting());
            assert_eq!(health.rest(), Some(Duration::from_millis(1)));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(health.admits(None));
        health.answered();
        assert!(health.admits(None) && !health.is_resting());
        assert_eq!(health.failed(Duration::ZERO), timing::MIRROR_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_mirror_that_is_silent_rests_for_a_multiple_of_the_time_that_it_cost() {
        let health = Health::default();
        for seconds in [20, 40, 60] {
            assert_eq!(health.failed(timing::MIRROR), Duration::from_secs(seconds));
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert!(health.admits(None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_finds_out_whether_a_mirror_answers_again() {
        let health = Health::default();
        health.failed(Duration::ZERO);
        tokio::time::advance(timing::MIRROR_PAUSE).await;
        assert_eq!(health.rest(), Some(Duration::ZERO));
        assert_eq!([health.admits(None), health.admits(None)], [true, false]);
        assert_eq!(health.rest(), Some(Duration::ZERO), "it is tried");
        tokio::time::advance(timing::MIRROR).await;
        assert!(health.admits(None), "the first one was cancelled");
    }

    #[tokio::test(start_paused = true)]
    async fn a_mirror_without_a_blob_is_asked_for_others() {
        let health = Health::default();
        let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
        assert_eq!([health.note_lacking(&one), health.note_lacking(&one)], [true, false]);
        assert!(!health.admits(Some(&one)) && health.admits(Some(&other)) && health.admits(None));
        for number in 0..LACKING {
            health.note_lacking(&Digest::of(&number.to_le_bytes()));
        }
        assert!(health.admits(Some(&one)), "the memory is bounded");
    }
}
