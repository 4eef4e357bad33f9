//! [`Clock`]: the time that a read has.

use std::time::Duration;

use tokio::time::Instant;

/// When a read began, and when it must be answered, whatever it waits for until then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) came: Instant,
    pub(crate) until: Instant,
    /// Somebody else may have what is read: there is no use in waiting for a source that does not answer.
    pub(crate) others_left: bool,
}

impl Clock {
    /// A read that begins now.
    pub(crate) fn begin(limit: Duration) -> Self {
        let came = Instant::now();
        Self { came, until: came + limit, others_left: false }
    }

    /// For an attempt that others may follow: half of what is left.
    pub(crate) fn half(self) -> Self {
        let now = Instant::now();
        Self { until: now + self.until.saturating_duration_since(now) / 2, others_left: true, ..self }
    }
}
