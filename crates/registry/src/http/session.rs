//! Requests to one repository: authorised, redirected, checked and retried.
//!
//! Invariants: an `Authorization` header is sent to the registry's own origin and to nothing else; a redirect never
//! leads from HTTPS to HTTP; whatever leaves here as an answer has the status and range that were asked for.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, LOCATION, RANGE,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tarpon_fetch::{Fault, SourceError};
use tarpon_oci::{Blob, Digest, Verified, limits, media_type};
use tokio::time::timeout_at;
use url::Url;

use super::auth::Authenticator;
use super::body;
use super::challenge::Challenge;
use super::locations::{Location, Locations};
use super::range::ContentRange;
use super::retry::{Budget, Failure, Retry, retry_after};
use super::wire::Wire;
use crate::credentials::CredentialSource;
use crate::stats::Counters;
use crate::transport::{Response, Transport, without_query};

/// Connections opened ahead: for the config and the first layers.
const WARM_CONNECTIONS: usize = 3;

/// One repository of one registry.
pub(crate) struct Session {
    wire: Wire,
    auth: Authenticator,
    locations: Locations,
    repository: String,
    /// The last ranged request was answered with the whole blob.
    ignores_ranges: AtomicBool,
}

/// What is asked for.
#[derive(Clone, Copy)]
pub(super) enum Ask<'a> {
    /// A manifest or index, by tag or digest.
    Manifest(&'a str),
    /// Bytes of a blob; `None` is all of them.
    Blob(Blob, Option<(u64, u64)>),
}

/// A checked answer. For a range: `skip` bytes come before it.
pub(super) struct Answer {
    pub(super) response: Response,
    pub(super) skip: u64,
}

impl Session {
    /// For `repository` of the registry `name` (as in references) at `host`.
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        reference: &tarpon_oci::Reference,
        verify: bool,
        credentials: CredentialSource,
        counters: Arc<Counters>,
    ) -> Result<Self, url::ParseError> {
        let repository = reference.repository().to_owned();
        Ok(Self {
            wire: Wire::new(transport, reference.api_host(), verify, counters)?,
            auth: Authenticator::new(credentials, reference.registry().to_owned(), repository.clone()),
            locations: Locations::default(),
            repository,
            ignores_ranges: AtomicBool::new(false),
        })
    }

    /// Whether the registry was last seen to answer a ranged request with the whole blob.
    pub(crate) fn ignores_ranges(&self) -> bool {
        self.ignores_ranges.load(Ordering::Relaxed)
    }

    /// Opens connections for what comes next, without credentials. Their answers do not matter. Nothing is done on this
    /// machine, where handshakes are free, nor before it is known whether the registry speaks HTTPS.
    pub(crate) async fn warm_up(&self) {
        let Some(base) = self.wire.base().filter(|base| !crate::transport::is_loopback(base)) else { return };
        let connect = || async {
            let headers = HeaderMap::new();
            if let Ok(response) = self.wire.send(Method::GET, base.clone(), headers, Bytes::new()).await {
                body::drain(response).await;
            }
        };
        futures::future::join_all((0..WARM_CONNECTIONS).map(|_| connect())).await;
    }

    /// A manifest or index and the `Content-Type` it came with. `expected`: its digest, when it is known.
    pub(crate) async fn manifest(
        &self,
        tag_or_digest: &str,
        expected: Option<&Digest>,
    ) -> Result<(Verified<Bytes>, Option<String>), SourceError> {
        self.small(Ask::Manifest(tag_or_digest), limits::MANIFEST_BYTES, |headers, bytes| {
            let declared = headers.get("docker-content-digest").and_then(|value| value.to_str().ok()?.parse().ok());
            let verified = match expected.copied().or(declared) {
                Some(digest) => {
                    Verified::check(&digest, bytes).map_err(|error| Failure::bad_data(error.to_string()))?
                }
                None => Verified::seal(bytes),
            };
            let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
            Ok((verified, content_type))
        })
        .await
    }

    /// A short blob, whole.
    pub(crate) async fn small_blob(&self, blob: Blob) -> Result<Verified<Bytes>, SourceError> {
        self.small(Ask::Blob(blob, None), blob.size, |_, bytes| {
            Verified::check(&blob.digest, bytes).map_err(|error| Failure::bad_data(error.to_string()))
        })
        .await
    }

    async fn small<T>(
        &self,
        ask: Ask<'_>,
        limit: u64,
        check: impl Fn(&HeaderMap, Bytes) -> Result<T, Failure>,
    ) -> Result<T, SourceError> {
        let shown = self.shown(ask);
        let mut budget = Budget::new();
        loop {
            let attempt = async {
                let answer = self.attempt(ask).await?;
                let headers = answer.response.headers.clone();
                check(&headers, body::collect(answer.response, limit, &shown).await?)
            };
            match within(&budget, &shown, attempt).await {
                Ok(value) => return Ok(value),
                Err(failure) => budget.spend(failure).await?,
            }
        }
    }

    /// Opens `range` of `blob`: the head of the answer is here and was checked, the body follows.
    pub(super) async fn open(&self, blob: Blob, range: Range<u64>) -> Result<Answer, SourceError> {
        let whole = range == (0..blob.size);
        let ask = Ask::Blob(blob, (!whole).then_some((range.start, range.end)));
        let shown = self.shown(ask);
        let mut budget = Budget::new();
        loop {
            match within(&budget, &shown, self.attempt(ask)).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => budget.spend(failure).await?,
            }
        }
    }

    /// One attempt: with the redirects, the renewed token and the renewed presigned address that belong to it.
    async fn attempt(&self, ask: Ask<'_>) -> Result<Answer, Failure> {
        let Ask::Blob(blob, _) = ask else {
            return self.checked(ask, self.at_registry(ask).await?).await;
        };
        let mut renewed = false;
        loop {
            let location = match self.locations.locate(&blob.digest).await {
                Location::Known(url) => url,
                Location::Ask(asking) => {
                    let response = self.at_registry(ask).await?;
                    let Some(url) = self.redirect(&response, self.wire.base())? else {
                        if response.status.is_success() {
                            self.locations.is_direct(asking);
                        }
                        return self.checked(ask, response).await;
                    };
                    asking.found(&url);
                    body::drain(response).await;
                    url
                }
            };
            let answer = match self.at_location(ask, &location).await {
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
            // Whatever it was: the next attempt asks the registry for another address.
            self.locations.forget(&blob.digest, &location).await;
            match answer {
                Some(answer) => return answer,
                None if renewed => {
                    let message = format!("{}: {} refuses an address that is new", self.shown(ask), host(&location));
                    return Err(Failure::new(Fault::Denied, Retry::Never, message));
                }
                None => renewed = true,
            }
        }
    }

    /// Asks the registry itself, answering one challenge.
    async fn at_registry(&self, ask: Ask<'_>) -> Result<Response, Failure> {
        let path = self.path(ask);
        let mut challenged = false;
        // The first request of all finds out the scheme on its way.
        let mut first = self.wire.choose(&path, &headers(ask)).await?;
        loop {
            let authorization = match &first {
                Some(_) => None,
                None => Some(self.auth.authorize(&self.wire).await?),
            };
            let response = match first.take() {
                Some(response) => response,
                None => {
                    let base = self.wire.base().expect("the scheme was chosen above");
                    let url = base.join(&path).expect("a repository, a tag and a digest make a path");
                    self.get(url, ask, authorization.as_ref().and_then(|found| found.header.clone())).await?
                }
            };
            if response.status != StatusCode::UNAUTHORIZED {
                return Ok(response);
            }
            if challenged {
                let message = format!("{}: 401 Unauthorized, also with a fresh token", self.shown(ask));
                self.auth.denied(&message).await;
                return Err(Failure::new(Fault::Denied, Retry::Never, message));
            }
            challenged = true;
            let challenge = Challenge::from_headers(&response.headers);
            body::drain(response).await;
            self.auth.challenged(authorization.as_ref(), challenge, &self.wire).await?;
        }
    }

    /// Asks where the registry sent us, and wherever that sends us on to.
    async fn at_location(&self, ask: Ask<'_>, location: &Url) -> Result<Response, Failure> {
        let mut url = location.clone();
        for _ in 0..limits::REDIRECTS {
            // A registry that redirects to itself still wants to know who asks.
            let authorization = match self.wire.is_registry(&url) {
                true => self.auth.authorize(&self.wire).await?.header,
                false => None,
            };
            let response = self.get(url.clone(), ask, authorization).await?;
            match self.redirect(&response, Some(&url))? {
                Some(next) => url = next,
                None => return Ok(response),
            }
            body::drain(response).await;
        }
        Err(Failure::refused(format!("{}: more than {} redirects", self.shown(ask), limits::REDIRECTS)))
    }

    async fn get(&self, url: Url, ask: Ask<'_>, authorization: Option<HeaderValue>) -> Result<Response, Failure> {
        let mut headers = headers(ask);
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, value);
        }
        self.wire.send(Method::GET, url, headers, Bytes::new()).await
    }

    /// Where `response`, which came from `from`, redirects to, if it does.
    fn redirect(&self, response: &Response, from: Option<&Url>) -> Result<Option<Url>, Failure> {
        if !matches!(response.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let (Some(from), Some(location)) = (from, response.headers.get(LOCATION).and_then(|value| value.to_str().ok()))
        else {
            return Err(Failure::refused(format!("{}: a redirect to nowhere", self.repository)));
        };
        let refused = |why: &str| Failure::refused(format!("{} redirects {why}", host(from)));
        let mut to = from.join(location).map_err(|_| refused("to what is no address"))?;
        match (from.scheme(), to.scheme()) {
            (_, "https") | ("http", "http") => {}
            ("https", "http") => return Err(refused("from HTTPS to plain HTTP")),
            _ => return Err(refused("to what is not HTTP")),
        }
        if !to.username().is_empty() || to.password().is_some() {
            return Err(refused("to an address with a password in it"));
        }
        to.set_fragment(None);
        Ok(Some(to))
    }

    /// Checks the head of an answer against what was asked.
    async fn checked(&self, ask: Ask<'_>, response: Response) -> Result<Answer, Failure> {
        let shown = self.shown(ask);
        let encoding = response.headers.get(CONTENT_ENCODING);
        if response.status.is_success() && encoding.is_some_and(|value| value != "identity") {
            return Err(Failure::bad_data(format!("{shown}: encoded ({encoding:?}), which was not asked for")));
        }
        match (response.status, ask) {
            (StatusCode::OK, Ask::Manifest(_)) => Ok(Answer { response, skip: 0 }),
            (StatusCode::OK, Ask::Blob(blob, range)) => {
                check_length(&response, blob.size, &shown)?;
                if response.headers.contains_key(CONTENT_RANGE) {
                    return Err(Failure::bad_data(format!("{shown}: 200 with a Content-Range")));
                }
                if range.is_some() && !self.ignores_ranges.swap(true, Ordering::Relaxed) {
                    tracing::warn!("{shown}: the registry sends whole blobs when asked for ranges");
                }
                Ok(Answer { response, skip: range.map_or(0, |(start, _)| start) })
            }
            (StatusCode::PARTIAL_CONTENT, Ask::Blob(blob, Some((start, end)))) => {
                check_range(&response, blob, start..end, &shown)?;
                check_length(&response, end - start, &shown)?;
                self.ignores_ranges.store(false, Ordering::Relaxed);
                Ok(Answer { response, skip: 0 })
            }
            _ => Err(refusal(response, &shown).await),
        }
    }

    fn path(&self, ask: Ask<'_>) -> String {
        match ask {
            Ask::Manifest(tag_or_digest) => format!("{}/manifests/{tag_or_digest}", self.repository),
            Ask::Blob(blob, _) => format!("{}/blobs/{}", self.repository, blob.digest),
        }
    }

    pub(super) fn shown(&self, ask: Ask<'_>) -> String {
        let path = self.path(ask);
        match ask {
            Ask::Blob(_, Some((start, end))) => format!("GET {path} bytes {start}-{}", end.saturating_sub(1)),
            _ => format!("GET {path}"),
        }
    }
}

async fn within<T>(
    budget: &Budget,
    shown: &str,
    attempt: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    timeout_at(budget.deadline(), attempt).await.unwrap_or_else(|_| {
        let message = format!("{shown}: no answer within {} s", crate::timing::REQUEST.as_secs());
        Err(Failure::new(Fault::Timeout, Retry::Never, message))
    })
}

fn headers(ask: Ask<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    match ask {
        Ask::Manifest(_) => {
            let accept = HeaderValue::from_str(&media_type::ACCEPT_MANIFEST.join(", "));
            headers.insert(ACCEPT, accept.expect("media types are plain text"));
        }
        Ask::Blob(_, None) => {}
        Ask::Blob(_, Some((start, end))) => {
            let range = HeaderValue::from_str(&format!("bytes={start}-{}", end.saturating_sub(1)));
            headers.insert(RANGE, range.expect("digits are plain text"));
        }
    }
    headers
}

fn host(url: &Url) -> String {
    url.origin().ascii_serialization()
}

fn check_length(response: &Response, expected: u64, shown: &str) -> Result<(), Failure> {
    match body::content_length(response) {
        Some(length) if length != expected => {
            Err(Failure::bad_data(format!("{shown}: {length} bytes instead of {expected}")))
        }
        _ => Ok(()),
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

/// What blob hosts answer when a presigned address is too old: 403, and 400 or 401 some of them.
fn is_expired(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 401 | 403)
}

/// What an answer that is not a success means.
async fn refusal(response: Response, shown: &str) -> Failure {
    let status = response.status;
    let (fault, retry) = match status.as_u16() {
        404 | 410 => (Fault::NotFound, Retry::Never),
        401 | 403 => (Fault::Denied, Retry::Never),
        416 | 200..=299 => (Fault::BadData, Retry::Once),
        429 | 503 => (Fault::Unavailable, retry_after(&response.headers).map_or(Retry::Later, Retry::After)),
        408 | 425 | 500 | 502 | 504 => (Fault::Unavailable, Retry::Later),
        501 | 505..=599 => (Fault::Unavailable, Retry::Never),
        _ => (Fault::Refused, Retry::Never),
    };
    // The body of a 416 may never come: docker-registry announces the blob's length and sends a line of text.
    let reason = match status.as_u16() {
        416 | 200..=299 => None,
        _ => reason(response).await,
    };
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    Failure::new(fault, retry, format!("{shown}: {status}{reason}"))
}

/// The message in a registry's error body.
async fn reason(response: Response) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Body {
        errors: Vec<Entry>,
    }
    #[derive(serde::Deserialize)]
    struct Entry {
        code: String,
        #[serde(default)]
        message: String,
    }
    let collected = body::collect(response, limits::ERROR_BODY_BYTES, "");
    let bytes = tokio::time::timeout(crate::timing::DRAIN, collected).await.ok()?.ok()?;
    let first = serde_json::from_slice::<Body>(&bytes).ok()?.errors.into_iter().next()?;
    let text: String =
        format!("{} {}", first.code, first.message).chars().filter(|c| !c.is_control()).take(200).collect();
    Some(text.trim().to_owned())
}

/// Shown in `Debug` of whatever holds a session.
impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.wire.base().map(without_query).unwrap_or_default())
    }
}
