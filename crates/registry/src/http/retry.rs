//! Decides what follows a failed attempt: an error, or another attempt after a pause.

use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};
use tarpon_blob::{Fault, SourceError};
use tarpon_oci::limits;
use tokio::time::{Instant, sleep, timeout_at};

use crate::timing;

/// The position of a host among those that serve an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Position {
    /// The only one.
    #[default]
    Only,
    /// A mirror: another host can answer instead.
    Mirror,
    /// The registry, which is asked after its mirrors.
    AfterMirrors,
}

impl Position {
    /// The budget of a short request. `time_limit` is that of the endpoint, if it has one of its own.
    pub(super) fn budget(self, time_limit: Option<Duration>) -> Budget {
        match self {
            Self::Only => Budget::new(),
            Self::Mirror => Budget::of_mirror(time_limit.map_or(timing::MIRROR, |own| own.min(timing::MIRROR))),
            Self::AfterMirrors => Budget::lasting(timing::AFTER_MIRRORS),
        }
    }
}

/// A failed attempt.
#[derive(Debug, Clone)]
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
    /// After the pause that the server requested, and a little more.
    After(Duration),
    /// After what is left of a pause of this process.
    AfterOwn(Duration),
}

impl Failure {
    pub(crate) fn new(fault: Fault, retry: Retry, message: String) -> Self {
        Self { error: SourceError::new(fault, message), retry }
    }

    /// A failure: the answer does not match the request.
    pub(crate) fn bad_data(message: String) -> Self {
        Self::new(Fault::BadData, Retry::Once, message)
    }

    /// A failure that no further attempt can change.
    pub(crate) fn refused(message: String) -> Self {
        Self::new(Fault::Refused, Retry::Never, message)
    }
}

/// Repeats `attempt` until it succeeds or no retry is left. `shown` names the operation.
pub(super) async fn retried<T, F: Future<Output = Result<T, Failure>>>(
    mut budget: Budget,
    shown: &str,
    attempt: impl Fn() -> F,
) -> Result<T, SourceError> {
    loop {
        match budget.within(shown, attempt()).await {
            Ok(value) => return Ok(value),
            Err(failure) => budget.spend(failure).await?,
        }
    }
}

/// The attempts and the time of one request.
#[derive(Debug)]
pub(crate) struct Budget {
    time: Duration,
    deadline: Instant,
    attempts: u32,
    failed: u32,
    wrong: u32,
    /// The failure before the attempt under way: the cause, if the time ends within that one.
    last: Option<SourceError>,
}

impl Budget {
    /// The budget of a short request.
    pub(crate) fn new() -> Self {
        Self::lasting(timing::REQUEST)
    }

    /// The budget of a request that carries `bytes`: as long as it takes without stalls.
    pub(crate) fn carrying(bytes: u64) -> Self {
        let slowest = timing::STALL_BYTES / timing::STALL.as_secs();
        Self::lasting(timing::COMMIT * limits::ATTEMPTS + Duration::from_secs(bytes / slowest))
    }

    /// The budget of a short request to a mirror.
    fn of_mirror(time: Duration) -> Self {
        Self { attempts: 1, ..Self::lasting(time) }
    }

    fn lasting(time: Duration) -> Self {
        Self { time, deadline: Instant::now() + time, attempts: limits::ATTEMPTS, failed: 0, wrong: 0, last: None }
    }

    /// Restarts the time, not the attempts: for operations that may last while they make progress.
    pub(crate) fn restart_clock(&mut self) {
        self.deadline = Instant::now() + self.time;
    }

    /// Runs one attempt within the remaining time.
    pub(crate) async fn within<T>(
        &self,
        shown: &str,
        attempt: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        timeout_at(self.deadline, attempt).await.unwrap_or_else(|_| {
            let before = self.last.as_ref().map(|error| format!(", and before that: {error}")).unwrap_or_default();
            let message = format!("{shown}: no response within {} s{before}", self.time.as_secs_f64());
            Err(Failure::new(Fault::Timeout, Retry::Never, message))
        })
    }

    /// Counts a failed attempt and waits until the next may start. An error if none is left.
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
            Retry::After(pause) | Retry::AfterOwn(pause) => pause,
        };
        if self.failed >= self.attempts {
            return Err(self.final_error(&failure.error, ""));
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        if pause >= left {
            let why = format!(", next attempt only in {} s", pause.as_secs());
            return Err(self.final_error(&failure.error, &why));
        }
        let pause = match failure.retry {
            // Half of the time that is left belongs to the attempt.
            Retry::After(asked) => spread(asked).min(asked + (left - asked) / 2),
            _ => pause,
        };
        self.last = Some(failure.error.clone());
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
    pause + random_below(pause / 2)
}

/// The pause that a host asked for, and up to a quarter more: all nodes of a cluster may have got the same `Retry-After` at the same time.
/// Never less.
pub(super) fn spread(asked: Duration) -> Duration {
    asked + random_below((asked / 4).min(timing::RETRY_AFTER_SPREAD))
}

fn random_below(most: Duration) -> Duration {
    let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX).max(1);
    Duration::from_millis(RandomState::new().hash_one(0) % most)
}

/// `Retry-After`: seconds or a date (RFC 9110 §10.2.3). A date is compared with the `Date` of the same answer, or with the local
/// clock if there is none.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match text.parse::<u32>() {
        Ok(seconds) => Duration::from_secs(u64::from(seconds)),
        Err(_) => {
            let date = |text: &str| httpdate::parse_http_date(text).ok();
            let now = headers.get(DATE).and_then(|value| date(value.to_str().ok()?)).unwrap_or_else(SystemTime::now);
            date(text)?.duration_since(now).unwrap_or_default()
        }
    };
    Some(pause.clamp(timing::BACKOFF, timing::RETRY_AFTER_LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    fn pause(retry_after: &str, date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, retry_after.parse().unwrap());
        if let Some(date) = date {
            headers.insert(DATE, date.parse().unwrap());
        }
        super::retry_after(&headers)
    }

    #[test]
    fn a_pause_is_seconds_or_a_date_of_any_of_three_forms() {
        assert_eq!(pause("7", None), Some(Duration::from_secs(7)));
        for date in ["Sun, 06 Nov 1994 08:49:44 GMT", "Sunday, 06-Nov-94 08:49:44 GMT", "Sun Nov  6 08:49:44 1994"] {
            assert_eq!(pause(date, Some(NOW)), Some(Duration::from_secs(7)), "{date}");
        }
        for nonsense in ["soon", "-1", "1.5", "Sun, 99 Nov 1994 08:49:44 GMT"] {
            assert_eq!(pause(nonsense, Some(NOW)), None, "{nonsense}");
        }
    }

    #[test]
    fn nodes_that_got_the_same_pause_come_back_at_different_times_and_none_too_early() {
        for (asked, most) in [(4, 1_000), (10, 2_000), (600, 2_000)] {
            let asked = Duration::from_secs(asked);
            let pauses: std::collections::BTreeSet<_> = (0..100).map(|_| spread(asked)).collect();
            assert!(pauses.iter().all(|pause| (asked..asked + Duration::from_millis(most)).contains(pause)));
            assert!(pauses.len() > 10, "{pauses:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_spread_of_a_pause_leaves_time_for_the_attempt() {
        for _ in 0..100 {
            let mut budget = Budget::lasting(Duration::from_secs(11));
            let asked = Duration::from_secs(10);
            let began = Instant::now();
            let failure = Failure::new(Fault::Unavailable, Retry::After(asked), "busy".to_owned());
            budget.spend(failure).await.unwrap();
            // The timer has a resolution of 1 ms.
            let latest = asked + Duration::from_millis(501);
            assert!((asked..=latest).contains(&began.elapsed()), "{:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_runs_out_of_time_names_the_failure_before_it() {
        let mut budget = Budget::lasting(Duration::from_secs(5));
        budget.spend(Failure::new(Fault::Unavailable, Retry::Later, "the cause".to_owned())).await.unwrap();
        let silent = budget.within("a blob", std::future::pending::<Result<(), Failure>>()).await.unwrap_err();
        assert_eq!(silent.error.to_string(), "a blob: no response within 5 s, and before that: the cause");
        assert_eq!(silent.error.fault, Fault::Timeout);
    }

    #[test]
    fn a_pause_is_never_nothing_and_never_for_ever() {
        assert_eq!(pause("0", None), Some(timing::BACKOFF));
        assert_eq!(pause(NOW, None), Some(timing::BACKOFF), "that date is long past");
        assert_eq!(pause("Fri, 31 Dec 9999 23:59:59 GMT", Some(NOW)), Some(timing::RETRY_AFTER_LONGEST));
        assert_eq!(pause("4294967295", None), Some(timing::RETRY_AFTER_LONGEST));
    }
}
