//! A small read-only registry over loopback HTTP: for `tarpon demo`, and under the test registry.
//!
//! It has no TLS, no authentication and no push, and listens on this machine only.

mod contents;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

pub use contents::{Body, Contents};

use crate::stats::{Counters, Stats};

/// Bytes of a request's body that are taken.
const REQUEST_BYTES: usize = 64 << 10;
/// Connections at once. More wait.
const CONNECTIONS: usize = 256;

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
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let counters = Arc::new(Counters::default());
        let accepting = tokio::spawn(accept(listener, handler, counters.clone()));
        Ok(Self { address, counters, accepting })
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

async fn accept(listener: TcpListener, handler: Arc<dyn Handler>, counters: Arc<Counters>) {
    // Dropped with this task, which ends the connections too.
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => drop(connections.spawn(serve(stream, handler.clone(), counters.clone()))),
            Err(error) => {
                // Out of file descriptors, most likely: a connection must end first.
                tracing::warn!("accepting a connection: {error}");
                tokio::time::sleep(crate::timing::BACKOFF).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, handler: Arc<dyn Handler>, counters: Arc<Counters>) {
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
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!("serving a connection: {error}");
    }
}
