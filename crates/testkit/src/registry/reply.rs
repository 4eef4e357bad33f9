//! Responses of the model.

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::header::{CONTENT_LENGTH, LOCATION};
use http::{HeaderValue, Response, StatusCode};
use tarpon_registry::serve::Body;

pub(super) fn redirect(status: u16, location: &str) -> Response<Body> {
    let mut answer = text(status, "moved");
    answer.headers_mut().insert(LOCATION, header(location));
    answer
}

pub(super) fn text(status: u16, body: &str) -> Response<Body> {
    let bytes = Bytes::from(body.to_owned());
    let length = bytes.len();
    let mut answer = Response::new(stream::iter([Ok(bytes)]).boxed());
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(CONTENT_LENGTH, length.into());
    answer
}

pub(super) fn header(value: &str) -> HeaderValue {
    HeaderValue::from_str(value).unwrap_or_else(|_| HeaderValue::from_static(""))
}
