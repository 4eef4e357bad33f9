//! [`RawTransport`]: responses of arbitrary bytes, parsed by the HTTP library that the true transport uses.

use std::collections::VecDeque;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use http::header::{AUTHORIZATION, CONTENT_RANGE};
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tarpon_registry::transport::{Request, Response, Transport, TransportError, TransportFault};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

pub(super) const REGISTRY: &str = "registry.test";
pub(super) const USER: &str = "tester";
pub(super) const PASSWORD: &str = "a-password-of-the-user";
/// Between two responses.
const SEPARATOR: u8 = 0x1e;
/// At the end of a response: the connection stays open, and nothing more arrives.
const SILENCE: u8 = 0xff;
/// Room for a request, which the server reads to its end.
const PIPE_BYTES: usize = 64 << 10;
/// Bytes that arrive at once.
const PIECE_BYTES: usize = 700;
const REQUEST_END: &[u8] = b"\r\n\r\n";

/// Answers each request with the next response, and those after the last with the last one.
pub(super) struct RawTransport {
    responses: Mutex<VecDeque<Bytes>>,
    served: Mutex<Vec<Arc<Served>>>,
    requests: Mutex<usize>,
}

/// A response as it was parsed.
pub(super) struct Served {
    status: StatusCode,
    headers: HeaderMap,
    body: Mutex<BytesMut>,
}

impl Served {
    /// The byte that it has at this place of the blob.
    pub(super) fn at(&self, place: u64) -> Option<u8> {
        let start = match self.status {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT => {
                let range = self.headers.get(CONTENT_RANGE)?.to_str().ok()?;
                let digits = range.split(|letter: char| !letter.is_ascii_digit());
                digits.filter(|digits| !digits.is_empty()).map(|digits| digits.parse().ok()).next()??
            }
            _ => return None,
        };
        self.body.lock().get(usize::try_from(place.checked_sub(start)?).ok()?).copied()
    }
}

impl RawTransport {
    pub(super) fn new(responses: &[u8]) -> Self {
        let responses = responses.split(|byte| *byte == SEPARATOR).map(Bytes::copy_from_slice).collect();
        Self { responses: Mutex::new(responses), served: Mutex::default(), requests: Mutex::default() }
    }

    pub(super) fn requests(&self) -> usize {
        *self.requests.lock()
    }

    /// The responses that had a head, in order.
    pub(super) fn served(&self) -> Vec<Arc<Served>> {
        self.served.lock().clone()
    }

    /// The bodies, as far as they were read.
    pub(super) fn bodies(&self) -> Vec<Bytes> {
        self.served.lock().iter().map(|served| served.body.lock().clone().freeze()).collect()
    }

    fn next(&self) -> Bytes {
        let mut responses = self.responses.lock();
        match responses.len() {
            0 | 1 => responses.front().cloned().unwrap_or_default(),
            _ => responses.pop_front().unwrap_or_default(),
        }
    }

    async fn respond(&self, request: Request) -> Result<Response, TransportError> {
        *self.requests.lock() += 1;
        check(&request);
        let (client, server) = tokio::io::duplex(PIPE_BYTES);
        tokio::spawn(serve(server, self.next()));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(client)).await.map_err(broken)?;
        tokio::spawn(connection);
        let mut sent = http::Request::new(Empty::<Bytes>::new());
        *sent.method_mut() = request.method;
        *sent.headers_mut() = request.headers;
        let target = request.url[url::Position::BeforePath..url::Position::AfterQuery].parse();
        *sent.uri_mut() = target.map_err(|_| TransportError::new(TransportFault::Broken, "odd address"))?;
        let (head, body) = sender.send_request(sent).await.map_err(broken)?.into_parts();
        let served = Arc::new(Served { status: head.status, headers: head.headers.clone(), body: Mutex::default() });
        self.served.lock().push(served.clone());
        let body = body.into_data_stream().map(move |piece| {
            // The connection lasts as long as its sender.
            let _open = &sender;
            let piece = piece.map_err(broken)?;
            served.body.lock().extend_from_slice(&piece);
            Ok(piece)
        });
        Ok(Response { status: head.status, headers: head.headers, body: body.boxed() })
    }
}

impl Transport for RawTransport {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        self.respond(request).boxed()
    }
}

/// Checks what the client may send, and to whom.
fn check(request: &Request) {
    let url = &request.url;
    assert_eq!(url.scheme(), "https", "plain HTTP");
    assert!(url.username().is_empty() && url.password().is_none(), "a password in an address");
    let Some(authorization) = request.headers.get(AUTHORIZATION) else { return };
    let pair = format!("Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
    let is_password = authorization.as_bytes() == pair.as_bytes();
    // The token service may be on any port of the registry's host. A token is for the registry itself.
    let is_home = url.host_str() == Some(REGISTRY) && (is_password || url.port().is_none());
    assert!(is_home, "credentials for {REGISTRY} are sent to {}", url.origin().ascii_serialization());
}

/// Reads the request, sends the response, and closes the connection.
async fn serve(mut connection: DuplexStream, response: Bytes) {
    let mut request = BytesMut::new();
    while !request.ends_with(REQUEST_END) {
        match connection.read_buf(&mut request).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
    }
    let is_silent = response.ends_with(&[SILENCE]);
    let response = response.slice(..response.len() - usize::from(is_silent));
    for piece in response.chunks(PIECE_BYTES) {
        if connection.write_all(piece).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    if is_silent {
        // Until the client closes it.
        let _closed = connection.read_buf(&mut request).await;
    }
}

fn broken(error: hyper::Error) -> TransportError {
    TransportError::new(TransportFault::Broken, error.to_string())
}
