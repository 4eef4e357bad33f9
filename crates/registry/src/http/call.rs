//! One request, which may be sent several times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::header::{ACCEPT, ACCEPT_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use url::Url;

use super::feed::Feed;
use crate::timing;
use crate::transport::{Body, RequestBody};

/// Bytes of a body that are passed on at once, so that progress is visible.
const PIECE_BYTES: usize = 64 << 10;

/// A request without its address and without credentials.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) method: Method,
    /// `METHOD PATH`, for messages.
    pub(super) shown: String,
    pub(super) headers: HeaderMap,
    pub(super) payload: Payload,
    /// Longest time without progress of the body or the answer.
    pub(super) time_limit: Duration,
    /// Whether it only checks that its host answers.
    pub(super) is_probe: bool,
}

/// The body of a request.
#[derive(Clone)]
pub(super) enum Payload {
    Bytes(Bytes),
    /// The rest of an upload. Sending it again needs a rewind.
    Feed(Arc<Feed>),
}

impl Call {
    /// A request without a body. `path` is for messages.
    pub(super) fn new(method: Method, path: &str) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let shown = format!("{method} {path}");
        let (payload, time_limit) = (Payload::Bytes(Bytes::new()), timing::FIRST_BYTE);
        Self { method, shown, headers, payload, time_limit, is_probe: false }
    }

    pub(super) fn get(path: &str) -> Self {
        Self::new(Method::GET, path)
    }

    /// Adds a header whose value is plain text.
    pub(super) fn with(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.insert(name, HeaderValue::from_str(value).expect("plain text"));
        self
    }

    pub(super) fn accepting(self, types: &[&str]) -> Self {
        self.with(ACCEPT, &types.join(", "))
    }

    /// Makes it a check that its host answers, however long that takes.
    pub(super) fn probing(self) -> Self {
        Self { time_limit: timing::REQUEST, is_probe: true, ..self }
    }

    /// Adds a body, which the registry may take longer to process.
    pub(super) fn carrying(self, payload: Payload) -> Self {
        Self { payload, time_limit: timing::COMMIT, ..self }
    }
}

impl Payload {
    /// The body of one attempt. `activity` shows its progress.
    pub(super) async fn open(&self, activity: &Arc<Activity>) -> RequestBody {
        match self {
            Self::Bytes(bytes) if bytes.len() <= PIECE_BYTES => RequestBody::Whole(bytes.clone()),
            Self::Bytes(bytes) => {
                let pieces = stream::unfold(bytes.clone(), |mut rest| async {
                    let piece = rest.split_to(PIECE_BYTES.min(rest.len()));
                    (!piece.is_empty()).then_some((Ok(piece), rest))
                });
                RequestBody::Pieces { length: Some(bytes.len() as u64), pieces: watched(pieces.boxed(), activity) }
            }
            Self::Feed(feed) => {
                let (length, pieces) = feed.clone().open().await;
                RequestBody::Pieces { length, pieces: watched(pieces, activity) }
            }
        }
    }
}

/// Shows whether the body of a request makes progress.
#[derive(Default)]
pub(super) struct Activity {
    taken: AtomicU64,
    /// The connection waits for us: the time that the producer of the bytes needs is no stall of the network.
    waiting: AtomicBool,
}

impl Activity {
    /// Number of pieces taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether anything was taken since [`Activity::taken`] was `before`, or there was nothing to take.
    pub(super) fn has_progressed_since(&self, before: u64) -> bool {
        self.taken() != before || self.waiting.load(Ordering::Relaxed)
    }
}

fn watched(pieces: Body, activity: &Arc<Activity>) -> Body {
    let state = (pieces, activity.clone());
    stream::unfold(state, |(mut pieces, activity)| async {
        activity.waiting.store(true, Ordering::Relaxed);
        let piece = pieces.next().await;
        activity.waiting.store(false, Ordering::Relaxed);
        activity.taken.fetch_add(1, Ordering::Relaxed);
        piece.map(|piece| (piece, (pieces, activity)))
    })
    .boxed()
}

/// Resolves `relative` against `base`.
pub(super) fn join(base: &Url, relative: &str) -> Url {
    base.join(relative).expect("a repository, a tag and a digest make a path")
}
