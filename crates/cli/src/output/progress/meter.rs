//! Received bytes, rate and remaining time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::size;

/// Time over which the rate is measured: a shorter one jumps with each layer, a longer one does not notice that a link has become slow.
const WINDOW: Duration = Duration::from_secs(5);
/// Time between two samples of the window.
const SAMPLE: Duration = Duration::from_millis(250);
/// No rate is shown before: the first bytes wait for a connection.
const WARM_UP: Duration = Duration::from_millis(500);
/// Longer times are not shown.
const LONGEST: Duration = Duration::from_secs(99 * 3600);

/// The bytes of all layers together.
#[derive(Debug)]
pub(super) struct Meter {
    total: u64,
    received: u64,
    /// Times and the bytes received until then, oldest first.
    samples: VecDeque<(Instant, u64)>,
}

impl Meter {
    pub(super) fn new(total: u64, now: Instant) -> Self {
        Self { total, received: 0, samples: VecDeque::from([(now, 0)]) }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn set_total(&mut self, total: u64) {
        self.total = total;
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Whether everything has arrived. Bytes repeated after a failure are counted again, so there may be more.
    pub(super) fn is_complete(&self) -> bool {
        self.received >= self.total
    }

    pub(super) fn add(&mut self, bytes: u64, now: Instant) {
        self.received = self.received.saturating_add(bytes);
        if self.samples.back().is_none_or(|(last, _)| now.duration_since(*last) >= SAMPLE) {
            self.samples.push_back((now, self.received));
        }
        while self.samples.len() > 1 && self.samples.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            self.samples.pop_front();
        }
    }

    /// Bytes per second; `None` if it is not known yet.
    fn rate(&self, now: Instant) -> Option<u64> {
        let (since, before) = self.samples.front()?;
        let time = now.duration_since(*since);
        if time < WARM_UP {
            return None;
        }
        let bytes = u128::from(self.received - before) * 1000 / time.as_millis();
        u64::try_from(bytes).ok()
    }

    /// `12 MiB of 37 MiB`.
    pub(super) fn amount(&self) -> String {
        // Repeated bytes could exceed the total.
        let received = self.received.min(self.total);
        format!("{} of {}", size::human(received), size::human(self.total))
    }

    /// `8.1 MiB/s, 3 s left`, or as much of it as is known.
    pub(super) fn speed(&self, now: Instant) -> Speed {
        let Some(rate) = self.rate(now) else { return Speed::default() };
        if rate == 0 {
            return Speed { rate: Some("stalled".to_owned()), left: None };
        }
        let left = Duration::from_secs(self.total.saturating_sub(self.received).div_ceil(rate));
        Speed { rate: Some(format!("{}/s", size::human(rate))), left: (left <= LONGEST).then(|| time(left)) }
    }
}

/// Rate and remaining time as text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Speed {
    pub(super) rate: Option<String>,
    pub(super) left: Option<String>,
}

/// `3 s left`, `2 min 5 s left`, `1 h 20 min left`.
fn time(left: Duration) -> String {
    let seconds = left.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s left"),
        (0, min, s) => format!("{min} min {s} s left"),
        (h, min, _) => format!("{h} h {min} min left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let start = Instant::now();
        let mut meter = Meter::new(100 << 20, start);
        assert_eq!(meter.speed(start), Speed::default(), "nothing is known at the start");
        for second in 1..=10 {
            meter.add(1 << 20, start + SECOND * second);
        }
        let speed = meter.speed(start + SECOND * 10);
        assert_eq!((speed.rate.as_deref(), speed.left.as_deref()), (Some("1.0 MiB/s"), Some("1 min 30 s left")));
        for second in 11..=20 {
            meter.add(4 << 20, start + SECOND * second);
        }
        assert_eq!(meter.speed(start + SECOND * 20).rate.as_deref(), Some("4.0 MiB/s"));
        assert_eq!(meter.amount(), "50 MiB of 100 MiB");
        assert!(meter.samples.len() < 25, "{}", meter.samples.len());
    }

    #[test]
    fn bytes_repeated_after_a_failure_never_exceed_the_total() {
        let start = Instant::now();
        let mut meter = Meter::new(1024, start);
        meter.add(4096, start + SECOND);
        assert_eq!((meter.amount().as_str(), meter.is_complete()), ("1.0 KiB of 1.0 KiB", true));
        assert_eq!(meter.speed(start + SECOND).left.as_deref(), Some("0 s left"));
    }

    #[test]
    fn times_have_two_units_and_very_long_ones_are_not_shown() {
        for (seconds, text) in [(3, "3 s left"), (125, "2 min 5 s left"), (4800, "1 h 20 min left")] {
            assert_eq!(time(SECOND * seconds), text);
        }
        let start = Instant::now();
        let mut meter = Meter::new(u64::MAX, start);
        assert_eq!(meter.speed(start + SECOND).rate.as_deref(), Some("stalled"));
        meter.add(2048, start + SECOND);
        assert_eq!(meter.speed(start + SECOND).left, None);
    }
}
