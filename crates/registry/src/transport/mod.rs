//! The interface to the network: one request in, one status, its headers and a stream of bytes out.
//!
//! An implementation must not follow redirects, retry, add credentials, or decode the body. All that is decided above this
//! interface, so that a scripted transport can test it.

mod https;
mod loopback;
mod system_roots;
mod tls;

use std::fmt;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use http::{HeaderMap, Method, StatusCode};
use url::Url;

pub(crate) use https::HttpsTransport;
pub(crate) use loopback::is_loopback;

/// Sends requests.
pub trait Transport: Send + Sync + 'static {
    /// Sends `request` and waits for the head of its answer. The body follows as it arrives.
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>>;
}

/// One request.
pub struct Request {
    /// The method.
    pub method: Method,
    /// The full address. Its query may contain a signature: never print it.
    pub url: Url,
    /// Headers; secret values are marked sensitive.
    pub headers: HeaderMap,
    /// The body.
    pub body: RequestBody,
    /// The trust in the other side.
    pub peer: Peer,
}

/// The body of a request.
pub enum RequestBody {
    /// Complete in memory.
    Whole(Bytes),
    /// A stream.
    Pieces {
        /// Its length in bytes. `None` is sent in chunks.
        length: Option<u64>,
        /// The bytes. An error in them must abort the request.
        pieces: Body,
    },
}

/// The kind of host that a request is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A host that the user named: `--tls-verify=false` and the client certificate of `--cert-dir` are for it.
    Registry,
    /// A host that an answer named. Its certificate is always checked.
    Other,
}

/// The head of an answer, and its body.
pub struct Response {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// The body as it arrives. Dropping it closes the connection.
    pub body: Body,
}

/// The bytes of a body. A body of an answer that ends before its `Content-Length` must end with an error.
pub type Body = BoxStream<'static, Result<Bytes, TransportError>>;

/// No answer, or an incomplete one.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct TransportError {
    /// The class, which decides about retries.
    pub kind: TransportFault,
    /// The cause, in one line without secrets.
    pub message: String,
}

/// Classes of network failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportFault {
    /// The name does not resolve, the port is closed, or there is no route.
    Connect,
    /// The other side is no TLS server.
    NotTls,
    /// The certificate is not trusted. Final.
    Certificate,
    /// The connection broke.
    Broken,
    /// No answer in time.
    Slow,
}

impl TransportError {
    /// An error of class `kind`.
    pub fn new(kind: TransportFault, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, without_query(&self.url))
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status)
    }
}

/// An address that can be shown, without query, fragment and user part, which may be secret.
pub(crate) fn without_query(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}
