//! What a request says, read within bounds and with our own failures.

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::Failure;

/// Bytes of a body: the longest are commands and environments of containers, which the kernel holds below that.
const BODY_BYTES: usize = 1 << 20;
/// How long a body may take to arrive, from a client on this machine.
const BODY_TIME: Duration = Duration::from_secs(30);

/// How long an image may take to be prepared if the request does not say.
const PATIENCE: Duration = Duration::from_secs(600);
/// The longest that anybody may wait: a connection is not held for ever.
const MOST: u32 = 3600;

/// The body of a request, whatever its Content-Type says.
pub(super) struct Said<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Said<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &S) -> Result<Self, Failure> {
        let step = "read the request";
        let body = Limited::new(request.into_body(), BODY_BYTES).collect();
        let body = tokio::time::timeout(BODY_TIME, body).await.map_err(|_| Failure::late(step, BODY_TIME))?;
        let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => Failure::too_long(BODY_BYTES),
            None => Failure::invalid(step, error),
        })?;
        serde_json::from_slice(&body.to_bytes()).map(Self).map_err(|error| Failure::invalid(step, error))
    }
}

/// What stands behind the `?` of a request.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let query = Query::try_from_uri(&parts.uri);
        query.map(|Query(query)| Self(query)).map_err(|error| Failure::invalid("read the query", error.body_text()))
    }
}

/// How long a request may take that says so, or does not.
pub(super) fn patience(seconds: Option<u32>) -> Result<Duration, Failure> {
    match seconds {
        None => Ok(PATIENCE),
        Some(seconds @ 1..=MOST) => Ok(Duration::from_secs(seconds.into())),
        Some(_) => Err(Failure::invalid("read the request", format!("a time is 1 to {MOST} seconds"))),
    }
}
