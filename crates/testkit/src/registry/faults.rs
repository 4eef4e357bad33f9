//! Faults of a single request.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, stream};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE, RANGE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tarpon_registry::serve::Body;
use tokio::time::sleep;

use super::model::{FakeRegistry, Role};
use super::reply::{header, redirect, text};

/// Bytes of each piece of a body without an end.
const ENDLESS_PIECE: usize = 16 << 10;

/// A fault of one request, or none.
#[derive(Debug, Clone)]
pub enum Fault {
    /// No fault.
    Pass,
    /// Connection refused.
    Connect,
    /// Packets are lost: no connection after this time.
    Unreachable(Duration),
    /// The peer does not speak TLS.
    NotTls,
    /// The certificate is not trusted.
    Certificate,
    /// The connection breaks before an answer.
    Broken,
    /// Never answers.
    Never,
    /// The normal answer, after this delay.
    Late(Duration),
    /// This status, with a short text.
    Status(u16),
    /// This status, with `Retry-After`.
    RetryAfter(u16, &'static str),
    /// A redirect to this address.
    Redirect(u16, String),
    /// The normal answer with this header set, or without it if the value is empty.
    Header(&'static str, &'static str),
    /// 200 and the whole blob, for any range.
    IgnoreRange,
    /// 416 that announces a long body and sends a short one.
    Unsatisfiable,
    /// The normal head; the body breaks after this many bytes.
    BreakAfter(usize),
    /// As [`Fault::BreakAfter`], but the body appears to end there normally.
    EndAfter(usize),
    /// The normal head; the body stops after this many bytes and the connection stays open.
    StallAfter(usize),
    /// The normal answer, at this many bytes per second.
    Trickle(usize),
    /// The normal answer with one bit flipped.
    FlipBit,
    /// The normal answer and some extra bytes.
    Overlong,
    /// 200 and a page of HTML.
    Html,
    /// 200 and this text.
    Text(&'static str),
    /// 206 in several parts.
    Multipart,
    /// The registry accepts this many bytes of the request's body, and the connection breaks.
    TakeAndBreak(usize),
    /// The registry accepts this many bytes of the request's body, and never answers.
    TakeAndHang(usize),
    /// The registry executes the request, and the connection breaks before the answer.
    DoAndBreak,
    /// This status, with `Retry-After` and the registry's `Date`.
    RetryAt(u16, &'static str, &'static str),
    /// 200 and this text with this content type.
    Typed(&'static str, &'static str),
    /// The normal answer with one bit of this byte flipped; numbers beyond the end count on from the start.
    FlipAt(usize),
    /// The normal answer with one more header.
    MoreHeader(&'static str, &'static str),
    /// The normal answer, whose `Content-Length` is wrong by this much. A longer one ends with an error and a shorter one
    /// early, as HTTP requires.
    LengthOff(i64),
    /// The normal answer with a `Content-Range` that is wrong by this much: the range itself, and the total.
    RangeOff(i64, i64),
    /// A redirect to the same address.
    RedirectHere(u16),
    /// The normal head with this body, its length, and no digest.
    Instead(Bytes),
    /// The normal head without a length; the body never ends.
    Endless,
}

/// A failure without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// Connection refused.
    Connect,
    /// The peer does not speak TLS.
    NotTls,
    /// The certificate is not trusted.
    Certificate,
    /// The connection broke.
    Broken,
}

/// The answer of `registry` to `request` under `fault`.
pub async fn answer(
    registry: &FakeRegistry,
    role: Role,
    mut request: Request<Bytes>,
    fault: Fault,
) -> Result<Response<Body>, NoAnswer> {
    match &fault {
        Fault::Connect => return Err(NoAnswer::Connect),
        Fault::Unreachable(pause) => {
            sleep(*pause).await;
            return Err(NoAnswer::Connect);
        }
        Fault::NotTls => return Err(NoAnswer::NotTls),
        Fault::Certificate => return Err(NoAnswer::Certificate),
        Fault::Broken => return Err(NoAnswer::Broken),
        Fault::Never => std::future::pending().await,
        Fault::Late(pause) => sleep(*pause).await,
        Fault::Status(status) => return Ok(text(*status, "no")),
        Fault::RetryAfter(status, when) => {
            let mut answer = text(*status, "later");
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(when));
            return Ok(answer);
        }
        Fault::Redirect(status, location) => return Ok(redirect(*status, location)),
        Fault::RedirectHere(status) => return Ok(redirect(*status, &request.uri().to_string())),
        Fault::RetryAt(status, when, now) => {
            let mut answer = text(*status, "later");
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(when));
            answer.headers_mut().insert(DATE, HeaderValue::from_static(now));
            return Ok(answer);
        }
        Fault::TakeAndBreak(bytes) | Fault::TakeAndHang(bytes) => {
            let taken = (*bytes).min(request.body().len());
            request.body_mut().truncate(taken);
            // A partial body does not match its range.
            request.headers_mut().remove(CONTENT_RANGE);
            drop(registry.answer(role, &request).await);
            if let Fault::TakeAndHang(_) = fault {
                std::future::pending::<()>().await;
            }
            return Err(NoAnswer::Broken);
        }
        Fault::DoAndBreak => {
            drop(registry.answer(role, &request).await);
            return Err(NoAnswer::Broken);
        }
        Fault::Typed(kind, body) => {
            let mut answer = text(200, body);
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            return Ok(answer);
        }
        Fault::Html => {
            let mut answer = text(200, "<html>Please log in to the hotel's network</html>");
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html"));
            return Ok(answer);
        }
        Fault::Text(body) => return Ok(text(200, body)),
        Fault::Unsatisfiable => {
            let body = stream::iter([Ok(Bytes::from_static(b"no such range"))]).chain(stream::pending());
            let mut answer = Response::new(body.boxed());
            *answer.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
            answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("100000"));
            return Ok(answer);
        }
        Fault::IgnoreRange => drop(request.headers_mut().remove(RANGE)),
        _ => {}
    }
    Ok(spoil(registry.answer(role, &request).await, fault).await)
}

/// Corrupts a normal answer.
async fn spoil(mut answer: Response<Body>, fault: Fault) -> Response<Body> {
    match fault {
        Fault::Header(name, "") => drop(answer.headers_mut().remove(name)),
        Fault::Header(name, value) => {
            answer.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        Fault::MoreHeader(name, value) => {
            answer.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        Fault::LengthOff(by) => shift_length(answer.headers_mut(), by),
        Fault::RangeOff(range, total) => shift_range(answer.headers_mut(), range, total),
        Fault::Instead(ref body) => {
            answer.headers_mut().insert(CONTENT_LENGTH, body.len().into());
            answer.headers_mut().remove("docker-content-digest");
        }
        Fault::Multipart => {
            let multipart = HeaderValue::from_static("multipart/byteranges; boundary=x");
            answer.headers_mut().insert(CONTENT_TYPE, multipart);
            answer.headers_mut().remove(CONTENT_RANGE);
            answer.headers_mut().remove(CONTENT_LENGTH);
        }
        Fault::EndAfter(_) | Fault::Overlong | Fault::Endless => drop(answer.headers_mut().remove(CONTENT_LENGTH)),
        _ => {}
    }
    if answer.headers().contains_key(CONTENT_ENCODING) {
        return answer;
    }
    let (head, body) = answer.into_parts();
    let body = match fault {
        Fault::BreakAfter(at) => first(body, at).await.chain(stream::iter([Err(reset())])).boxed(),
        Fault::EndAfter(at) => first(body, at).await,
        Fault::StallAfter(at) => first(body, at).await.chain(stream::pending()).boxed(),
        Fault::Trickle(rate) => {
            let pieces: Vec<Bytes> = whole(body).await.chunks(rate).map(Bytes::copy_from_slice).collect();
            stream::iter(pieces)
                .then(|piece| async {
                    sleep(Duration::from_secs(1)).await;
                    Ok(piece)
                })
                .boxed()
        }
        Fault::FlipBit => flipped(whole(body).await, usize::MAX),
        Fault::FlipAt(at) => flipped(whole(body).await, at),
        Fault::LengthOff(by) if by > 0 => body.chain(stream::iter([Err(reset())])).boxed(),
        Fault::LengthOff(by) => {
            let bytes = whole(body).await;
            let cut = usize::try_from(by.unsigned_abs()).unwrap_or(usize::MAX);
            one(bytes.slice(..bytes.len().saturating_sub(cut)))
        }
        Fault::Instead(body) => one(body),
        Fault::Endless => stream::repeat_with(|| Ok(Bytes::from_static(&[b' '; ENDLESS_PIECE]))).boxed(),
        Fault::Overlong => body.chain(stream::iter([Ok(Bytes::from_static(b"and more"))])).boxed(),
        _ => body,
    };
    Response::from_parts(head, body)
}

/// One bit of the byte at `at` flipped; behind the end: of the last byte, or counted on from the start.
fn flipped(bytes: Bytes, at: usize) -> Body {
    let mut bytes = BytesMut::from(&bytes[..]);
    let at = if at == usize::MAX { bytes.len().saturating_sub(1) } else { at % bytes.len().max(1) };
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1;
    }
    one(bytes.freeze())
}

fn one(bytes: Bytes) -> Body {
    stream::iter((!bytes.is_empty()).then_some(Ok(bytes))).boxed()
}

fn shift_length(headers: &mut HeaderMap, by: i64) {
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    headers.insert(CONTENT_LENGTH, length.unwrap_or_default().saturating_add_signed(by).into());
}

/// Changes `bytes FIRST-LAST/TOTAL`. A whole blob gets such a header, which it must not have.
fn shift_range(headers: &mut HeaderMap, range: i64, total: i64) {
    let numbers = headers.get(CONTENT_RANGE).and_then(|value| {
        let numbers = value.to_str().ok()?.strip_prefix("bytes ")?.split(['-', '/']);
        numbers.map(|number| number.parse::<u64>().ok()).collect::<Option<Vec<_>>>()
    });
    let (first, last, size) = match numbers.as_deref() {
        Some(&[first, last, size]) => (first, last, size),
        _ => (0, 0, 1),
    };
    let [first, last] = [first, last].map(|number| number.saturating_add_signed(range));
    let text = format!("bytes {first}-{last}/{}", size.saturating_add_signed(total));
    headers.insert(CONTENT_RANGE, header(&text));
}

async fn whole(body: Body) -> Bytes {
    let pieces = body.filter_map(|piece| async { piece.ok() });
    pieces
        .fold(BytesMut::new(), |mut all, piece| async move {
            all.extend_from_slice(&piece);
            all
        })
        .await
        .freeze()
}

async fn first(body: Body, bytes: usize) -> Body {
    let mut whole = whole(body).await;
    whole.truncate(bytes);
    one(whole)
}

fn reset() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "connection reset by peer")
}
