//! Counts of passed, failed and skipped tests.

use std::fmt;
use std::ops::{Add, AddAssign};

/// The results of some tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Count {
    pub(crate) fn passed() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    pub(crate) fn failed() -> Self {
        Self { failed: 1, ..Self::default() }
    }

    pub(crate) fn skipped() -> Self {
        Self { skipped: 1, ..Self::default() }
    }
}

impl Add for Count {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}
