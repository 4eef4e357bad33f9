//! What follows a failed attempt: nothing, or another one after a pause.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tarpon_fetch::{Fault, SourceError};
use tarpon_oci::limits;
use tokio::time::{Instant, sleep};

use crate::timing;

/// A failed attempt.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: SourceError,
    pub(crate) retry: Retry,
}

/// Whether another attempt may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// It will not.
    Never,
    /// Once: the answer was wrong, which a cache on the way may have caused.
    Once,
    /// After a pause that grows.
    Later,
    /// After the pause that the server asked for.
    After(Duration),
}

impl Failure {
    pub(crate) fn new(fault: Fault, retry: Retry, message: String) -> Self {
        Self { error: SourceError::new(fault, message), retry }
    }

    /// An answer that is not what was asked for.
    pub(crate) fn bad_data(message: String) -> Self {
        Self::new(Fault::BadData, Retry::Once, message)
    }

    /// An answer that no attempt will change.
    pub(crate) fn refused(message: String) -> Self {
        Self::new(Fault::Refused, Retry::Never, message)
    }
}

/// The attempts and the time that one request has.
#[derive(Debug)]
pub(crate) struct Budget {
    deadline: Instant,
    failed: u32,
    wrong: u32,
}

impl Budget {
    pub(crate) fn new() -> Self {
        Self { deadline: Instant::now() + timing::REQUEST, failed: 0, wrong: 0 }
    }

    /// When the request must have ended.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Books a failed attempt and waits until the next may start; an error if there is none.
    pub(crate) async fn spend(&mut self, failure: Failure) -> Result<(), SourceError> {
        self.failed += 1;
        let pause = match failure.retry {
            Retry::Never => return Err(failure.error),
            Retry::Once if self.wrong > 0 => return Err(self.final_error(&failure.error, "")),
            Retry::Once => {
                self.wrong += 1;
                jittered(timing::BACKOFF)
            }
            Retry::Later => jittered(timing::BACKOFF * (1 << (self.failed - 1).min(10))),
            Retry::After(pause) => pause,
        };
        if self.failed >= limits::ATTEMPTS {
            return Err(self.final_error(&failure.error, ""));
        }
        if Instant::now() + pause >= self.deadline {
            let why = format!(", and the next may start only in {} s", pause.as_secs());
            return Err(self.final_error(&failure.error, &why));
        }
        tracing::debug!(error = %failure.error, pause = ?pause, "trying again");
        sleep(pause).await;
        Ok(())
    }

    fn final_error(&self, error: &SourceError, why: &str) -> SourceError {
        if self.failed == 1 && why.is_empty() {
            return error.clone();
        }
        let attempts = if self.failed == 1 { "attempt" } else { "attempts" };
        SourceError::new(error.fault, format!("{error} ({} {attempts}{why})", self.failed))
    }
}

/// `pause` and up to half as much again, so that clients which failed together do not come back together.
fn jittered(pause: Duration) -> Duration {
    let half = u64::try_from(pause.as_millis() / 2).unwrap_or(u64::MAX).max(1);
    pause + Duration::from_millis(RandomState::new().hash_one(0) % half)
}

/// `Retry-After` in seconds. Its other form, a date, needs a clock that agrees with the server's: such an answer is
/// retried like one without the header.
pub(crate) fn retry_after(headers: &http::HeaderMap) -> Option<Duration> {
    let seconds = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim().parse::<u32>().ok()?;
    Some(Duration::from_secs(u64::from(seconds)).max(timing::BACKOFF))
}
