//! What time it is: by the wall, for what is kept on the disk; since the start, for waiting.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

/// The clock of a store. Tests turn it by hand.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Time by the wall. May jump.
    fn wall(&self) -> SystemTime;

    /// Time since some fixed moment. Never goes back.
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
