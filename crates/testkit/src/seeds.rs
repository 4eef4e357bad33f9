//! Seeds of tests that make random cases: a few in an ordinary run, others or more as the environment demands.
//!
//! | variable | meaning |
//! |---|---|
//! | `SEED` | the first seed; alone: the only one |
//! | `SEEDS` | the number of seeds |
//! | `SECONDS` | as many seeds as fit into this time, at least one |

use std::time::{Duration, Instant};

/// The seeds of a run, in order.
#[derive(Debug)]
pub struct Seeds {
    next: u64,
    left: u64,
    until: Option<Instant>,
    begun: bool,
    /// Whether the environment names seeds and no time: then each of them is tested completely.
    pub is_complete: bool,
}

impl Seeds {
    /// The seeds that the environment names, or `ordinary` of them from 0.
    pub fn from_environment(ordinary: u64) -> Self {
        let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        let (first, seconds) = (number("SEED"), number("SECONDS"));
        let count = match (number("SEEDS"), seconds, first) {
            (Some(count), ..) => count,
            (None, Some(_), _) => u64::MAX,
            (None, None, Some(_)) => 1,
            (None, None, None) => ordinary,
        };
        let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let is_complete = seconds.is_none() && (count != ordinary || first.is_some());
        Self { next: first.unwrap_or_default(), left: count, until, begun: false, is_complete }
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let is_late = self.begun && self.until.is_some_and(|until| Instant::now() >= until);
        self.left = if is_late { 0 } else { self.left };
        self.left = self.left.checked_sub(1)?;
        self.begun = true;
        let seed = self.next;
        self.next = seed.wrapping_add(1);
        Some(seed)
    }
}

/// A small generator (splitmix64): a seed determines a run.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`. Limits are small enough to ignore the bias.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// As [`Random::below`], for positions.
    pub fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap_or(0)
    }
}

/// Bytes that look random, compress little and are the same each time.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..length).map(|_| random.next().to_le_bytes()[0]).collect()
}
