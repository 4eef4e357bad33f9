//! [`Clock`]: the time of a simulation.
//!
//! tokio wakes a task at the next whole millisecond. A packet on a fast link takes a fiftieth of that, so links and processors count in
//! nanoseconds by themselves ([`Moment`]), and a task continues from the moment it waited for, not from the one at which it woke. Only
//! the planner sees whole milliseconds: each of its requests takes up to one too long.

use std::time::Duration;

use tokio::time::Instant;

/// Nanoseconds since the simulation began.
pub(super) type Moment = u64;

/// The clock of tokio, which is paused: it advances when no task can run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    began: Instant,
}

impl Clock {
    /// A clock that begins now.
    pub(super) fn begin() -> Self {
        Self { began: Instant::now() }
    }

    pub(super) fn now(&self) -> Moment {
        nanos(self.began.elapsed())
    }

    /// Waits until the moment, if it is in the future.
    pub(super) async fn until(&self, moment: Moment) {
        if moment > self.now() {
            tokio::time::sleep_until(self.began + Duration::from_nanos(moment)).await;
        }
    }
}

pub(super) fn nanos(duration: Duration) -> Moment {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
