//! [`Deaths`]: when the last servers died.

use std::time::{Duration, Instant};

/// The times of the last `N` deaths.
pub(super) struct Deaths<const N: usize>([Option<Instant>; N]);

impl<const N: usize> Deaths<N> {
    pub(super) const NONE: Self = Self([None; N]);

    pub(super) fn add(&mut self, now: Instant) {
        self.0.rotate_left(1);
        self.0[N - 1] = Some(now);
    }

    /// How many there were, `N` at most.
    pub(super) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// Whether there were `N` within this time.
    pub(super) fn are_within(&self, period: Duration, now: Instant) -> bool {
        self.0.iter().all(|death| death.is_some_and(|death| now.duration_since(death) < period))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_deaths_count() {
        let period = Duration::from_secs(30);
        let start = Instant::now();
        let mut deaths = Deaths::<3>::NONE;
        for seconds in [0, 1, 29] {
            assert!(!deaths.are_within(period, start));
            deaths.add(start + Duration::from_secs(seconds));
        }
        assert!(deaths.are_within(period, start + Duration::from_secs(29)));
        assert!(!deaths.are_within(period, start + Duration::from_secs(30)), "the first one was 30 s ago");
        deaths.add(start + Duration::from_secs(30));
        assert!(deaths.are_within(period, start + Duration::from_secs(30)));
        assert_eq!(deaths.count(), 3);
    }
}
