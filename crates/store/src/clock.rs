//! Clocks: wall time for data on the disk; steady time for waiting.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

/// The clock of a store. Tests set it by hand.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Wall time. May jump.
    fn wall(&self) -> SystemTime;

    /// Time since some fixed moment. Never decreases.
    fn steady(&self) -> Duration;
}

/// The clock of the system.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn steady(&self) -> Duration {
        self.0.elapsed()
    }
}
