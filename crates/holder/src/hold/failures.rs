//! [`Failures`]: successors that died before they served, and servers that died soon after.

use std::time::{Duration, Instant};

/// Deaths of successors before they served, within a period, after which the holder gives up: the next one would die of the same cause.
const FAILURES: usize = 3;
/// Servers in a row that died soon after they began to serve, after which the holder gives up: every successor receives the request again
/// of which the last one died.
pub(crate) const SHORT_LIVES: usize = 32;

/// What has failed since a server has served for some time.
pub(super) struct Failures {
    /// Times of the last deaths before a server served, since the last one that served.
    before_serving: [Option<Instant>; FAILURES],
    short_lives: usize,
}

impl Failures {
    pub(super) const NONE: Self = Self { before_serving: [None; FAILURES], short_lives: 0 };

    /// A successor has died before it served.
    pub(super) fn add(&mut self, now: Instant) {
        self.before_serving.rotate_left(1);
        self.before_serving[FAILURES - 1] = Some(now);
    }

    /// A server serves.
    pub(super) fn serve(&mut self) {
        self.before_serving = [None; FAILURES];
    }

    /// A server has died that served. `soon`: after a short time.
    pub(super) fn add_death(&mut self, soon: bool) {
        self.short_lives = if soon { self.short_lives + 1 } else { 0 };
    }

    /// Whether the program on disk may be the cause. Every second attempt is with another one.
    pub(super) fn avoid_program(&self) -> bool {
        (self.before_serving.iter().flatten().count() + self.short_lives) % 2 == 1
    }

    /// Why no other successor is started, if none is.
    pub(super) fn are_too_many(&self, period: Duration, now: Instant) -> Option<&'static str> {
        let is_recent = |death: &Option<Instant>| death.is_some_and(|death| now.duration_since(death) < period);
        if self.before_serving.iter().all(is_recent) {
            return Some("several successors ended before they served");
        }
        (self.short_lives >= SHORT_LIVES).then_some("all successors die soon after they serve")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recent_failures_count() {
        let period = Duration::from_secs(30);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut failures = Failures::NONE;
        for seconds in [0, 1, 29] {
            assert_eq!(failures.are_too_many(period, start), None);
            failures.add(after(seconds));
        }
        assert!(failures.are_too_many(period, after(29)).is_some());
        assert_eq!(failures.are_too_many(period, after(30)), None, "the first one was 30 s ago");
        failures.serve();
        assert_eq!(failures.are_too_many(period, after(29)), None);
    }

    #[test]
    fn a_server_that_lives_ends_a_row_of_short_lives() {
        let mut failures = Failures::NONE;
        for _ in 1..SHORT_LIVES {
            failures.add_death(true);
        }
        failures.serve();
        assert_eq!(failures.are_too_many(Duration::ZERO, Instant::now()), None);
        failures.add_death(false);
        failures.add_death(true);
        assert_eq!(failures.are_too_many(Duration::ZERO, Instant::now()), None);
        assert!(failures.avoid_program());
        for _ in 1..SHORT_LIVES {
            failures.add_death(true);
        }
        assert!(failures.are_too_many(Duration::ZERO, Instant::now()).is_some());
    }
}
