//! Connections to the API, on a separate runtime, with limits on their number, size and time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tarpon_engine::service::Socket;
use tarpon_engine::{Error, ErrorKind, LogLimit, Result};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::api;
use crate::flag;
use crate::learning::{self, Learning};
use crate::limits;
use crate::state::ApiState;
use crate::write_timeout::WriteTimeout;

/// Connections at once; more wait in the socket's queue. Each costs a few tasks and buffers. More than [`limits::LONG`], so that long
/// requests never take all of them.
const CONNECTIONS: usize = limits::LONG + 40;
/// Bytes of a request's line and headers. The longest path has a mount point of 4 KiB, escaped.
const HEAD_BYTES: usize = 32 << 10;
/// How long the head of a request may take, and how long a connection may be idle.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// How long a client may read nothing of its answer: a client that still wants it does not pause for so long.
const WRITE_TIME: Duration = Duration::from_secs(60);
/// How long requests may take to finish when the daemon ends: the same time that the server gives to reads.
const DRAIN: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
const BACKOFF: Duration = Duration::from_millis(100);

/// Threads that handle requests. They mostly wait; layers are decoded in separate threads.
const WORKERS: usize = 2;
/// Threads that may block at the same time: those for waiting calls, and others for decoding and writing.
const BLOCKING_THREADS: usize = limits::THREADS + 56;

/// The running API. Dropping it aborts all connections.
pub(crate) struct Api {
    state: ApiState,
    /// None once it has ended.
    runtime: Option<Runtime>,
    accepting: JoinHandle<()>,
    /// Publishes learned starts.
    publishing: Option<JoinHandle<()>>,
    /// None once no new connections are accepted.
    socket: Option<Socket>,
}

impl Api {
    /// Starts to answer at the socket, and to publish learned starts if they are to be.
    pub(crate) fn start(state: ApiState, socket: Socket, learning: Option<Learning>) -> Result<Self> {
        let failed = |error: io::Error| Error::new(ErrorKind::Other, "start the API", error);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("tarpon-api")
            .enable_all()
            .build()
            .map_err(failed)?;
        let listener = {
            let _in_runtime = runtime.enter();
            socket.listener()
        };
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                runtime.shutdown_background();
                return Err(failed(error));
            }
        };
        let (router, stopping) = (api::router(state.clone()), state.stopping.subscribe());
        runtime.spawn(state.clone().publish_mounts());
        let accepting = runtime.spawn(accept(listener, router, stopping));
        let publishing = learning.map(|learning| runtime.spawn(learning::publish(state.clone(), learning)));
        Ok(Self { state, runtime: Some(runtime), accepting, publishing, socket: Some(socket) })
    }

    /// Stops accepting connections, and gives requests in progress some time to finish.
    pub(crate) async fn stop(mut self) {
        drop(self.socket.take());
        self.drain().await;
    }

    /// As [`Api::stop`]. New connections wait in the queue of the returned socket.
    pub(crate) async fn pause(mut self) -> Option<Socket> {
        let socket = self.socket.take();
        self.drain().await;
        socket
    }

    async fn drain(mut self) {
        self.state.stopping.send_replace(true);
        let state = self.state.clone();
        let publishing = self.publishing.take();
        let published = async {
            if let Some(publishing) = publishing {
                let _ended = publishing.await;
            }
        };
        let ended = async { futures::join!(&mut self.accepting, state.jobs.cancel_all(), published) };
        if tokio::time::timeout(DRAIN, ended).await.is_err() {
            tracing::warn!("not all requests finished within {} s", DRAIN.as_secs());
        }
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // It may be dropped in a task of another runtime, which must not wait.
            runtime.shutdown_background();
        }
    }
}

/// Accepts connections until the daemon ends, and returns when the last one is closed.
async fn accept(listener: UnixListener, router: Router, mut stopping: watch::Receiver<bool>) {
    let (semaphore, mut connections) = (Arc::new(Semaphore::new(CONNECTIONS)), JoinSet::new());
    let log = LogLimit::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            let permit = semaphore.clone().acquire_owned().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            accepted = accepted => accepted,
            () = flag::set(&mut stopping) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let (router, stopping) = (router.clone(), stopping.clone());
                connections.spawn(async move {
                    let _until_done = permit;
                    serve(stream, router, stopping).await;
                });
            }
            Err(error) => {
                // Most likely out of file descriptors: another connection must end first.
                if let Some(left_out) = log.admit() {
                    tracing::warn!(%error, "connection not accepted{left_out}");
                }
                tokio::time::sleep(BACKOFF).await;
            }
        }
    }
    drop(listener);
    connections.join_all().await;
}

async fn serve(stream: UnixStream, router: Router, mut stopping: watch::Receiver<bool>) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD_BYTES);
    let stream = TokioIo::new(WriteTimeout::new(stream, WRITE_TIME));
    let connection = http.serve_connection(stream, TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = flag::set(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended early");
    }
}
