//! A registry that limits concurrent requests, in front of another transport.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};
use tarpon_registry::transport::{Request, Response, Transport, TransportError};
use tokio::time::{Instant, sleep};

/// Duration of each answer, so that requests overlap.
const ANSWER: Duration = Duration::from_millis(50);

/// Answers 429 with `Retry-After` while the maximum number of requests is in progress, and counts retries that are too early.
pub struct CrowdedTransport {
    behind: Arc<dyn Transport>,
    at_once: usize,
    pause: u32,
    crowd: Mutex<Crowd>,
}

/// Observed figures.
#[derive(Debug, Clone, Copy, Default)]
pub struct Crowd {
    /// Requests in progress.
    pub under_way: usize,
    /// The maximum of concurrent requests, refused ones included.
    pub most: usize,
    /// Refused requests.
    pub refused: usize,
    /// Requests before the time that a refusal had named.
    pub too_early: usize,
    closed_until: Option<Instant>,
}

impl CrowdedTransport {
    /// In front of `behind`: answers up to `at_once` requests concurrently and refuses the others for `pause` seconds.
    pub fn new(behind: Arc<dyn Transport>, at_once: usize, pause: u32) -> Self {
        Self { behind, at_once, pause, crowd: Mutex::default() }
    }

    /// Returns the figures so far and resets the counts.
    pub fn take(&self) -> Crowd {
        let mut crowd = self.lock();
        let fresh = Crowd { under_way: crowd.under_way, closed_until: crowd.closed_until, ..Crowd::default() };
        std::mem::replace(&mut *crowd, fresh)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Crowd> {
        self.crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self) -> Response {
        let until = Instant::now() + Duration::from_secs(self.pause.into());
        let mut crowd = self.lock();
        crowd.refused += 1;
        crowd.closed_until = crowd.closed_until.max(Some(until));
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from(self.pause))]);
        Response { status: StatusCode::TOO_MANY_REQUESTS, headers, body: stream::empty().boxed() }
    }

    async fn respond(&self, request: Request) -> Result<Response, TransportError> {
        let is_full = {
            let mut crowd = self.lock();
            crowd.too_early += usize::from(crowd.closed_until.is_some_and(|until| Instant::now() < until));
            crowd.under_way += 1;
            crowd.most = crowd.most.max(crowd.under_way);
            crowd.under_way > self.at_once
        };
        let _leaving = Leaving(self);
        // A network takes time: other tasks run before the answer.
        tokio::task::yield_now().await;
        if is_full {
            return Ok(self.refuse());
        }
        sleep(ANSWER).await;
        self.behind.send(request).await
    }
}

struct Leaving<'a>(&'a CrowdedTransport);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.lock().under_way -= 1;
    }
}

impl Transport for CrowdedTransport {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        self.respond(request).boxed()
    }
}
