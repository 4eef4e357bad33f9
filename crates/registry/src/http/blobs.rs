//! Reads the blobs of a repository by range, at the registry or where it redirects to.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_RANGE, RANGE};
use tarpon_blob::{Fault, LogLimit, SourceError};
use tarpon_oci::{Blob, Verified};
use url::Url;

use super::answers::{check_encoding, check_length, host, redirect, refusal};
use super::body;
use super::call::Call;
use super::locations::{Location, Locations};
use super::range::ContentRange;
use super::retry::{Failure, Retry, retried};
use super::session::Session;
use crate::transport::Response;

/// The blobs of one repository.
pub(crate) struct Blobs {
    session: Arc<Session>,
    locations: Locations,
    /// The last ranged request was answered with the whole blob.
    ignores_ranges: AtomicBool,
    /// A registry may change its behaviour with every answer.
    log: LogLimit,
}

/// The requested bytes of a blob, from the first of the range to before its end. `None` requests all.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub(super) blob: Blob,
    pub(super) range: Option<(u64, u64)>,
}

/// A checked answer. For a range: `skip` bytes precede it.
pub(super) struct Answer {
    pub(super) response: Response,
    pub(super) skip: u64,
}

impl Blobs {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        let ignores_ranges = AtomicBool::new(false);
        Self { session, locations: Locations::default(), ignores_ranges, log: LogLimit::new() }
    }

    /// Whether the registry recently answered a ranged request with the whole blob.
    pub(crate) fn ignores_ranges(&self) -> bool {
        self.ignores_ranges.load(Ordering::Relaxed)
    }

    /// Reads a short blob whole.
    pub(crate) async fn small_blob(&self, blob: Blob) -> Result<Verified<Bytes>, SourceError> {
        let ask = Ask { blob, range: None };
        let shown = &self.shown(ask);
        retried(self.session.budget(), shown, || async move {
            let answer = self.attempt(ask).await?;
            let bytes = body::collect(answer.response, blob.size, shown).await?;
            Verified::check(&blob.digest, bytes).map_err(|error| Failure::bad_data(error.to_string()))
        })
        .await
    }

    /// Opens `range` of `blob`: returns after the head of the answer was received and checked. The body follows.
    pub(super) async fn open(&self, blob: Blob, range: Range<u64>) -> Result<Answer, SourceError> {
        let whole = range == (0..blob.size);
        let ask = Ask { blob, range: (!whole).then_some((range.start, range.end)) };
        retried(self.session.budget(), &self.shown(ask), || self.attempt(ask)).await
    }

    /// As [`Blobs::open`] for one byte, in one attempt that may be silent for as long as any request.
    pub(super) async fn probe(&self, blob: Blob, at: u64) -> Result<Answer, SourceError> {
        let ask = Ask { blob, range: Some((at, at + 1)) };
        let attempt = self.send(ask, self.call(ask).probing());
        self.session.budget().within(&self.shown(ask), attempt).await.map_err(|failure| failure.error)
    }

    async fn attempt(&self, ask: Ask) -> Result<Answer, Failure> {
        self.send(ask, self.call(ask)).await
    }

    /// One attempt, including its redirects, token renewal and renewed presigned address.
    async fn send(&self, ask: Ask, call: Call) -> Result<Answer, Failure> {
        let (blob, path) = (ask.blob, self.path(ask));
        let mut renewed = false;
        loop {
            let location = match self.locations.locate(&blob.digest).await {
                Location::Known(url) => url,
                Location::Ask(asking) => {
                    let response = self.session.at_registry(&path, &call).await?;
                    let Some(url) = redirect(&response, &self.session.url(&path), &call.shown)? else {
                        if response.status.is_success() {
                            self.locations.note_direct(asking);
                        }
                        return self.checked(ask, response).await;
                    };
                    self.locations.found(asking, &url);
                    body::drain(response).await;
                    url
                }
            };
            let answer = match self.session.follow(&location, &call).await {
                Ok(response) if is_expired(response.status) => {
                    body::drain(response).await;
                    None
                }
                Ok(response) => Some(self.checked(ask, response).await),
                Err(failure) => Some(Err(failure)),
            };
            if let Some(Ok(answer)) = answer {
                return Ok(answer);
            }
            // Whatever the cause: the next attempt requests another address from the registry.
            self.locations.forget(&blob.digest, &location).await;
            match answer {
                Some(answer) => return answer,
                None if renewed => return Err(self.refused_when_new(ask, &location)),
                None => renewed = true,
            }
        }
    }

    fn refused_when_new(&self, ask: Ask, location: &Url) -> Failure {
        let message = format!("{}: {} rejects a new redirect URL", self.shown(ask), host(location));
        Failure::new(Fault::Denied, Retry::Never, message)
    }

    /// Checks the head of an answer against the request.
    async fn checked(&self, ask: Ask, response: Response) -> Result<Answer, Failure> {
        let shown = self.shown(ask);
        check_encoding(&response, &shown)?;
        let Ask { blob, range } = ask;
        match (response.status, range) {
            (StatusCode::OK, range) => {
                check_length(&response, blob.size, &shown)?;
                if response.headers.contains_key(CONTENT_RANGE) {
                    return Err(Failure::bad_data(format!("{shown}: 200 with a Content-Range")));
                }
                if range.is_some()
                    && !self.ignores_ranges.swap(true, Ordering::Relaxed)
                    && let Some(left_out) = self.log.admit()
                {
                    tracing::warn!("{shown}: the registry sends whole blobs when asked for ranges{left_out}");
                }
                Ok(Answer { response, skip: range.map_or(0, |(start, _)| start) })
            }
            (StatusCode::PARTIAL_CONTENT, Some((start, end))) => {
                check_range(&response, blob, start..end, &shown)?;
                check_length(&response, end - start, &shown)?;
                self.ignores_ranges.store(false, Ordering::Relaxed);
                Ok(Answer { response, skip: 0 })
            }
            _ => Err(refusal(response, &shown).await),
        }
    }

    fn path(&self, ask: Ask) -> String {
        self.session.path(&format!("blobs/{}", ask.blob.digest))
    }

    fn call(&self, ask: Ask) -> Call {
        let call = Call { shown: self.shown(ask), ..Call::get("") };
        match ask.range {
            None => call,
            Some((start, end)) => call.with(RANGE, &format!("bytes={start}-{}", end.saturating_sub(1))),
        }
    }

    pub(super) fn shown(&self, ask: Ask) -> String {
        let path = self.path(ask);
        match ask.range {
            Some((start, end)) => format!("GET {path} bytes {start}-{}", end.saturating_sub(1)),
            None => format!("GET {path}"),
        }
    }
}

fn check_range(response: &Response, blob: Blob, range: Range<u64>, shown: &str) -> Result<(), Failure> {
    let text = response.headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    match text.and_then(ContentRange::parse) {
        Some(ContentRange::Bytes { first, last, total })
            if first == range.start && last == range.end - 1 && total.is_none_or(|total| total == blob.size) =>
        {
            Ok(())
        }
        _ => {
            let text: String = text.unwrap_or("nothing").chars().take(80).collect();
            Err(Failure::bad_data(format!("{shown}: 206 with {text:?} of {} bytes", blob.size)))
        }
    }
}

/// Whether a blob host refuses a presigned address as expired: 403, and for some hosts 400 or 401.
fn is_expired(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 401 | 403)
}
