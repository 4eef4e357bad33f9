//! Reads short bodies whole, bounded in bytes and in time.

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http::header::CONTENT_LENGTH;
use tarpon_blob::Fault;
use tokio::time::timeout;

use super::retry::{Failure, Retry};
use crate::timing;
use crate::transport::Response;

/// The whole body of `response`, at most `limit` bytes. `asked` is for messages.
pub(super) async fn collect(response: Response, limit: u64, asked: &str) -> Result<Bytes, Failure> {
    let declared = content_length(&response);
    let too_long = || Failure::new(Fault::Refused, Retry::Never, format!("{asked}: more than {limit} bytes"));
    if declared.is_some_and(|length| length > limit) {
        return Err(too_long());
    }
    let mut body = response.body;
    let mut collected = BytesMut::new();
    while let Some(piece) = timeout(timing::STALL, body.next()).await.transpose() {
        let piece = match piece {
            Ok(Ok(piece)) => piece,
            Ok(Err(error)) => return Err(unavailable(format!("{asked}: {error}"))),
            Err(_) => return Err(Failure::new(Fault::Timeout, Retry::Later, format!("{asked}: the body stalled"))),
        };
        if collected.len() as u64 + piece.len() as u64 > limit {
            return Err(too_long());
        }
        collected.extend_from_slice(&piece);
    }
    match declared {
        Some(length) if length != collected.len() as u64 => {
            Err(unavailable(format!("{asked}: the body ended after {} of {length} bytes", collected.len())))
        }
        _ => Ok(collected.freeze()),
    }
}

fn unavailable(message: String) -> Failure {
    Failure::new(Fault::Unavailable, Retry::Later, message)
}

/// `Content-Length`, if it is valid.
pub(super) fn content_length(response: &Response) -> Option<u64> {
    response.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads an unneeded body, if it is short, so that the connection can be reused.
pub(super) async fn drain(response: Response) {
    let short = content_length(&response).is_some_and(|length| length <= tarpon_oci::limits::ERROR_BODY_BYTES);
    if short {
        drop(timeout(timing::DRAIN, collect(response, tarpon_oci::limits::ERROR_BODY_BYTES, "")).await);
    }
}
