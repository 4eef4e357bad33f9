//! Bodies that are passed on: each wait for a part of them has a bound.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Collected, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::body::Body;

/// The header in which a client states how long it waits.
const TIMEOUT: &str = "grpc-timeout";

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// When the client of a call stops waiting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// The deadline of a request.
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let text = request.headers().get(TIMEOUT).and_then(|value| value.to_str().ok());
        Self(text.and_then(duration).and_then(|wait| Instant::now().checked_add(wait)))
    }

    /// Waits for `work` until the deadline, at most `limit`.
    pub(crate) async fn within<T>(self, limit: Duration, work: impl Future<Output = T>) -> Result<T, Status> {
        let latest = Instant::now() + limit;
        let until = self.0.map_or(latest, |deadline| deadline.min(latest));
        timeout_at(until, work).await.map_err(|_| match self.0 {
            Some(deadline) if deadline <= latest => Status::deadline_exceeded("containerd has not answered in time"),
            _ => Status::deadline_exceeded(format!("containerd has not answered for {} s", limit.as_secs())),
        })
    }
}

/// The value of a timeout: up to eight digits and a unit.
fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 60 * 60),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// A body that was read whole.
pub(crate) struct WholeBody {
    pub(crate) bytes: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Reads a body of up to `limit` bytes.
pub(crate) async fn whole<B>(body: B, limit: usize) -> Result<WholeBody, Status>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let read = Limited::new(body, limit).collect().await;
    let whole = |read: Collected<Bytes>| WholeBody { trailers: read.trailers().cloned(), bytes: read.to_bytes() };
    read.map(whole).map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => Status::resource_exhausted(format!("the message is longer than {limit} bytes")),
        None => Status::unavailable(format!("the message has not arrived: {error}")),
    })
}

/// The only message of a body; `None` if it is compressed, incomplete, or not the only one.
pub(crate) fn message(body: &[u8]) -> Option<&[u8]> {
    let (prefix, message) = body.split_at_checked(PREFIX)?;
    let length = u32::from_be_bytes(prefix[1..].try_into().ok()?);
    (prefix[0] == 0 && usize::try_from(length).ok()? == message.len()).then_some(message)
}

/// Passes an answer on, part by part. A part that does not arrive within `limit` ends it. `held` is dropped at its end.
pub(crate) fn streamed<T: Send + 'static>(
    answer: Response<Incoming>,
    deadline: Deadline,
    limit: Duration,
    held: T,
) -> Response<Body> {
    answer.map(|body| {
        // An answer without a message has its status in the head. With an empty body it would have none.
        if body.is_end_stream() {
            return Body::empty();
        }
        let parts = stream::unfold(Some((body, held)), move |left| async move {
            let (mut body, held) = left?;
            let part = match deadline.within(limit, body.frame()).await {
                Ok(None) => return None,
                Ok(Some(Ok(part))) => return Some((Ok::<_, Infallible>(part), Some((body, held)))),
                Ok(Some(Err(error))) => Status::unavailable(format!("containerd has not finished its answer: {error}")),
                Err(late) => late,
            };
            Some((Ok(end(&part)), None))
        });
        Body::new(StreamBody::new(Box::pin(parts)))
    })
}

/// The last part of an answer that ends with an error.
fn end(status: &Status) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    // Fails for metadata that are no headers, and there are none.
    let _written = status.add_header(&mut trailers);
    Frame::trailers(trailers)
}

impl From<WholeBody> for Body {
    fn from(WholeBody { bytes, trailers }: WholeBody) -> Self {
        if bytes.is_empty() && trailers.is_none() {
            return Self::empty();
        }
        let data = (!bytes.is_empty()).then(|| Frame::data(bytes));
        let parts = [data, trailers.map(Frame::trailers)].into_iter().flatten().map(Ok::<_, Infallible>);
        Self::new(StreamBody::new(stream::iter(parts)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_in_each_unit() {
        let expected = [
            ("3H", Some(10_800_000)),
            ("2M", Some(120_000)),
            ("120S", Some(120_000)),
            ("99999999m", Some(99_999_999)),
            ("5000u", Some(5)),
            ("7000000n", Some(7)),
        ];
        for (text, milliseconds) in expected {
            assert_eq!(duration(text), milliseconds.map(Duration::from_millis), "{text}");
        }
        for text in ["", "S", "1", "1s", "-1S", "+1S", "123456789S", "1.5S", "1ä"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn only_one_whole_message_is_read() {
        assert_eq!(message(&[0, 0, 0, 0, 2, 7, 8]), Some(&[7, 8][..]));
        assert_eq!(message(&[0, 0, 0, 0, 0]), Some(&[][..]));
        for wrong in [&[][..], &[0, 0, 0, 0], &[1, 0, 0, 0, 2, 7, 8], &[0, 0, 0, 0, 2, 7], &[0, 0, 0, 0, 2, 7, 8, 9]] {
            assert_eq!(message(wrong), None, "{wrong:?}");
        }
    }
}
