//! [`Answer`]: the response to a request that succeeded.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Content type of JSON lines: one value per line.
pub(crate) const LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson");

/// A status and a JSON body.
pub(crate) struct Answer<T>(pub(crate) StatusCode, pub(crate) T);

/// A response with status 200.
pub(crate) fn found<T>(what: T) -> Answer<T> {
    Answer(StatusCode::OK, what)
}

/// A response with this content type.
pub(crate) fn typed(content_type: HeaderValue, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        let Self(status, what) = self;
        // Our types always serialize to JSON.
        let mut text = serde_json::to_vec(&what).unwrap_or_default();
        text.push(b'\n');
        let mut response = typed(JSON, Body::from(text));
        *response.status_mut() = status;
        response
    }
}
