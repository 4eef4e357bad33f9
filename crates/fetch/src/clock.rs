//! [`Clock`]: the time limit of a read.

use std::time::Duration;

use tokio::time::Instant;

/// When a read began, and its deadline, whatever it waits for until then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) came: Instant,
    pub(crate) until: Instant,
    /// Whether another source can be tried afterwards. Then the read does not wait for one that does not answer.
    pub(crate) others_left: bool,
}

impl Clock {
    /// A read that begins now.
    pub(crate) fn begin(limit: Duration) -> Self {
        let came = Instant::now();
        Self { came, until: came + limit, others_left: false }
    }

    /// The clock of an attempt that others may follow: half of the remaining time.
    pub(crate) fn half(self) -> Self {
        let now = Instant::now();
        Self { until: now + self.until.saturating_duration_since(now) / 2, others_left: true, ..self }
    }
}
