//! [`Health`]: what failed in a tier, apart for reads and writes. A tier that takes nothing may still return what it has.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Error, ErrorKind};

/// How long a tier that failed is not asked. It doubles with each failure in a row, up to the longest.
pub(crate) const REST: Duration = Duration::from_secs(5);
pub(crate) const LONGEST_REST: Duration = Duration::from_secs(60);
/// Why nothing is written by this process any more: its credentials stay as they are.
pub(crate) const WRITING_DENIED: &str = "its credentials permit no writing";

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A read whose whole answer is awaited.
    Read,
    /// The head of a body. Only the body shows whether the tier works.
    Head,
    Write,
    /// A removal, which may need other permissions than to write.
    Remove,
}

impl Purpose {
    pub(crate) fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::Head)
    }
}

/// When a request was sent: after so many rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent(u64);

/// The failures of reads, or those of writes.
#[derive(Debug, Default)]
pub(crate) struct Health {
    last_failure: Option<String>,
    failures_in_row: u32,
    rests_until: Option<Instant>,
    /// How many rests began.
    rests: u64,
    is_denied: bool,
}

impl Health {
    pub(crate) fn sent(&self) -> Sent {
        Sent(self.rests)
    }

    /// A request was answered as a whole. One that was sent before the last failure shows nothing about the time after it.
    pub(crate) fn succeeded(&mut self, sent: Sent) {
        if sent == self.sent() {
            (self.failures_in_row, self.rests_until) = (0, None);
        }
    }

    pub(crate) fn failed(&mut self, why: String) {
        self.last_failure = Some(why);
        // Requests that were sent before the tier failed are no reason to let it rest longer.
        if self.rest().is_none() {
            let doublings = self.failures_in_row.min(8);
            self.failures_in_row += 1;
            self.rests += 1;
            self.rests_until = Some(Instant::now() + LONGEST_REST.min(REST * (1 << doublings)));
        }
    }

    /// A write failed. One that is not permitted is the last one.
    pub(crate) fn write_failed(&mut self, error: &Error, purpose: Purpose) {
        match (error.kind(), purpose) {
            (ErrorKind::Denied, Purpose::Write) => {
                (self.is_denied, self.last_failure) = (true, Some(format!("{error}: {WRITING_DENIED}")));
            }
            (ErrorKind::Denied, _) => {}
            _ => self.failed(error.to_string()),
        }
    }

    /// Notes why, without a rest.
    pub(crate) fn note(&mut self, why: String) {
        self.last_failure = Some(why);
    }

    /// How long it still rests after a failure.
    pub(crate) fn rest(&self) -> Option<Duration> {
        let left = self.rests_until.map(|until| until.saturating_duration_since(Instant::now()));
        left.filter(|left| !left.is_zero())
    }

    /// Whether it should be asked now.
    pub(crate) fn is_well(&self) -> bool {
        !self.is_denied && self.rest().is_none()
    }

    pub(crate) fn last_failure(&self) -> Option<&String> {
        self.last_failure.as_ref()
    }
}
