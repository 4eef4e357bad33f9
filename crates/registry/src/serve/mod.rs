//! A small HTTP server, and a read-only registry on it: for `tarpon demo`, and as the base of the test registry.
//!
//! It has no TLS and no authentication, and the registry no push. It listens on this machine only.

mod contents;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tarpon_blob::LogLimit;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

pub use contents::{Body, Contents};

use crate::stats::{Counters, Stats};

/// Maximum size of a request's body in bytes.
const REQUEST_BYTES: usize = 64 << 10;

/// Limits for clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Parallel connections. More wait.
    pub connections: usize,
    /// Bytes of a request's line and headers; at least 8 KiB.
    pub head_bytes: usize,
    /// Maximum time of a connection, whatever it does. It is closed after an answer. None: unlimited, and for many requests.
    pub lifetime: Option<Duration>,
}

impl Limits {
    /// For clients of our own.
    const OWN: Self = Self { connections: 256, head_bytes: 400 << 10, lifetime: None };
}

/// Answers requests. An error breaks the connection without an answer.
pub trait Handler: Send + Sync + 'static {
    /// The answer to `request`.
    fn handle(&self, request: Request<Bytes>) -> BoxFuture<'_, io::Result<Response<Body>>>;
}

impl Handler for Contents {
    fn handle(&self, request: Request<Bytes>) -> BoxFuture<'_, io::Result<Response<Body>>> {
        Box::pin(async move { Ok(self.answer(&request).await) })
    }
}

/// A running server. It and its connections end when this is dropped.
pub struct Server {
    address: SocketAddr,
    counters: Arc<Counters>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Listens on a free port of 127.0.0.1 and answers with `handler`.
    pub async fn start(handler: Arc<dyn Handler>) -> io::Result<Self> {
        Self::on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?, handler, Limits::OWN)
    }

    /// Answers connections to `listener` with `handler`, within `limits`. Must be called in a runtime.
    pub fn on(listener: TcpListener, handler: Arc<dyn Handler>, limits: Limits) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let counters = Arc::new(Counters::default());
        let accepting = tokio::spawn(accept(listener, handler, limits, counters.clone()));
        Ok(Self { address, counters, accepting })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `127.0.0.1:PORT`: the registry part of a reference.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Requests answered and bytes of bodies sent.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, handler: Arc<dyn Handler>, limits: Limits, counters: Arc<Counters>) {
    // Dropped with this task, which ends the connections too.
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= limits.connections {
            connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => drop(connections.spawn(serve(stream, handler.clone(), limits, counters.clone()))),
            Err(error) => {
                // Most likely out of file descriptors: a connection must end first.
                static NOT_ACCEPTED: LogLimit = LogLimit::new();
                if let Some(left_out) = NOT_ACCEPTED.admit() {
                    tracing::warn!("accepting a connection: {error}{left_out}");
                }
                tokio::time::sleep(crate::timing::BACKOFF).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, handler: Arc<dyn Handler>, limits: Limits, counters: Arc<Counters>) {
    drop(stream.set_nodelay(true));
    let service = service_fn(|request: Request<Incoming>| {
        let (handler, counters) = (handler.clone(), counters.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = Limited::new(body, REQUEST_BYTES).collect().await.map_err(io::Error::other)?.to_bytes();
            let answer = handler.handle(Request::from_parts(head, body)).await?;
            counters.request();
            let frames = |body: Body| {
                StreamBody::new(body.map(move |piece| {
                    piece.map(|piece| {
                        counters.received(piece.len() as u64);
                        Frame::data(piece)
                    })
                }))
            };
            io::Result::Ok(answer.map(frames))
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.max_buf_size(limits.head_bytes).keep_alive(limits.lifetime.is_none());
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let ended = match limits.lifetime {
        None => connection.await,
        Some(lifetime) => tokio::time::timeout(lifetime, connection).await.unwrap_or(Ok(())),
    };
    if let Err(error) = ended {
        tracing::debug!("serving a connection: {error}");
    }
}
