//! Extractors for request bodies and queries, with size and time limits and our own errors.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// Limit on the size of a body: the longest hold commands and environments of containers, which the kernel limits to less.
const BODY_BYTES: usize = 1 << 20;
/// Limit on the bytes of a body that are read, including those that are discarded.
const READ_BYTES: usize = 16 << 20;
/// How long a body may take to arrive, from a client on this machine.
const BODY_TIME: Duration = Duration::from_secs(30);

/// Default time limit for preparing an image.
const DEFAULT_TIME: Duration = Duration::from_secs(600);
/// Maximum time limit in seconds: no connection is held forever.
const MAX_SECONDS: u32 = 3600;

/// The JSON body of a request, whatever its Content-Type.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &S) -> Result<Self, Failure> {
        let step = "read the request";
        let body = tokio::time::timeout(BODY_TIME, collect(request.into_body())).await;
        let body = body.map_err(|_| Failure::late(step, BODY_TIME))??;
        serde_json::from_slice(&body).map(Self).map_err(|error| Failure::invalid(step, error))
    }
}

/// Reads a whole body. The rest of one that is too long is read and discarded: its client would otherwise keep writing and never see
/// the answer.
async fn collect(mut body: Body) -> Result<Vec<u8>, Failure> {
    let (mut kept, mut read) = (Vec::new(), 0_usize);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::invalid("read the request", error))?;
        let Some(bytes) = frame.data_ref() else { continue };
        read = read.saturating_add(bytes.len());
        if read <= BODY_BYTES {
            kept.extend_from_slice(bytes);
        } else if read > READ_BYTES {
            break;
        }
    }
    if read > BODY_BYTES { Err(Failure::too_long(BODY_BYTES)) } else { Ok(kept) }
}

/// The query of a request.
pub(super) struct QueryParams<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let query = Query::try_from_uri(&parts.uri);
        query.map(|Query(query)| Self(query)).map_err(|error| Failure::invalid("read the query", error.body_text()))
    }
}

/// The time limit of a request: the requested one or the default.
pub(super) fn time_limit(seconds: Option<u32>) -> Result<Duration, Failure> {
    match seconds {
        None => Ok(DEFAULT_TIME),
        Some(seconds @ 1..=MAX_SECONDS) => Ok(Duration::from_secs(seconds.into())),
        Some(_) => Err(Failure::invalid("read the request", format!("a time is 1 to {MAX_SECONDS} seconds"))),
    }
}
