//! One request, as often as it has to be sent.

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

/// Bytes of a body that are handed out at once, so that it shows whether they move.
const PIECE_BYTES: usize = 64 << 10;

/// A request without its address and without credentials.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) method: Method,
    /// `METHOD PATH`, for messages.
    pub(super) shown: String,
    pub(super) headers: HeaderMap,
    pub(super) payload: Payload,
    /// How long nothing may move, neither the body nor the answer.
    pub(super) patience: Duration,
    /// It finds out whether its host answers at all.
    pub(super) is_probe: bool,
}

/// What a request carries.
#[derive(Clone)]
pub(super) enum Payload {
    Bytes(Bytes),
    /// What is left of an upload. Sending it again needs a rewind.
    Feed(Arc<Feed>),
}

impl Call {
    /// A request that carries nothing. `path` is for messages.
    pub(super) fn new(method: Method, path: &str) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let shown = format!("{method} {path}");
        let (payload, patience) = (Payload::Bytes(Bytes::new()), timing::FIRST_BYTE);
        Self { method, shown, headers, payload, patience, is_probe: false }
    }

    pub(super) fn get(path: &str) -> Self {
        Self::new(Method::GET, path)
    }

    /// With a header whose value is plain text.
    pub(super) fn with(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.insert(name, HeaderValue::from_str(value).expect("plain text"));
        self
    }

    pub(super) fn accepting(self, types: &[&str]) -> Self {
        self.with(ACCEPT, &types.join(", "))
    }

    /// To find out whether its host answers at all, however long that takes.
    pub(super) fn probing(self) -> Self {
        Self { patience: timing::REQUEST, is_probe: true, ..self }
    }

    /// With a body, whose arrival the registry may think about for longer.
    pub(super) fn carrying(self, payload: Payload) -> Self {
        Self { payload, patience: timing::COMMIT, ..self }
    }
}

impl Payload {
    /// The body of one attempt. `activity` shows how it moves.
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

/// Shows whether the body of a request moves.
#[derive(Default)]
pub(super) struct Activity {
    taken: AtomicU64,
    /// The connection waits for us: the time that whoever makes the bytes needs is no stall of the network.
    waiting: AtomicBool,
}

impl Activity {
    /// Pieces taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether anything was taken since [`Activity::taken`] was `before`, or there was nothing to take.
    pub(super) fn goes_on_since(&self, before: u64) -> bool {
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

/// Where `relative` leads from `base`.
pub(super) fn join(base: &Url, relative: &str) -> Url {
    base.join(relative).expect("a repository, a tag and a digest make a path")
}
