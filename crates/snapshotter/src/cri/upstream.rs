//! [`Upstream`]: the connection to containerd's CRI service, made again when it is lost.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::{Authority, Parts, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tarpon_engine::LogLimit;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;

/// How long a connection may take. The kernel accepts it, unless the queue of the socket is full.
const CONNECT: Duration = Duration::from_secs(5);

/// Interval of pings while a call is in progress. gRPC servers in Go end connections with more than one in five minutes.
const PING: Duration = Duration::from_secs(6 * 60);

/// How long containerd may take to answer a ping.
const PONG: Duration = Duration::from_secs(60);

/// Attempts to send a call. It was not sent if the connection had ended before, which is noticed only then.
const ATTEMPTS: usize = 2;

/// The name of the server in requests. Every gRPC client uses this one on Unix sockets.
const AUTHORITY: Authority = Authority::from_static("localhost");

/// Containerd's socket.
pub(crate) struct Upstream {
    address: PathBuf,
    connection: Mutex<Option<SendRequest<Body>>>,
}

impl Upstream {
    /// Nothing is connected yet.
    pub(crate) fn new(address: PathBuf) -> Self {
        Self { address, connection: Mutex::default() }
    }

    /// Sends a call, and returns the head of the answer. The caller bounds the wait.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, Status> {
        *request.uri_mut() = local(request.uri()).map_err(|error| Status::internal(error.to_string()))?;
        for _ in 0..ATTEMPTS {
            let mut connection = self.connection().await.map_err(|error| self.unavailable(&error))?;
            match connection.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.unavailable(&error.into_error())),
                },
            }
        }
        Err(self.unavailable(&io::Error::from(io::ErrorKind::ConnectionReset)))
    }

    /// The current connection, or a new one.
    async fn connection(&self) -> io::Result<SendRequest<Body>> {
        let mut current = self.connection.lock().await;
        if let Some(known) = current.as_mut()
            && timeout(CONNECT, known.ready()).await.is_ok_and(|ready| ready.is_ok())
        {
            return Ok(known.clone());
        }
        *current = None;
        let (sender, connection) = timeout(CONNECT, self.connect()).await.map_err(|_| io::ErrorKind::TimedOut)??;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to containerd has ended");
            }
        });
        *current = Some(sender.clone());
        Ok(sender)
    }

    async fn connect(&self) -> io::Result<(SendRequest<Body>, impl Future<Output = hyper::Result<()>> + use<>)> {
        let socket = UnixStream::connect(&self.address).await?;
        let mut settings = http2::Builder::new(TokioExecutor::new());
        settings.timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PONG);
        settings.handshake(TokioIo::new(socket)).await.map_err(io::Error::other)
    }

    /// The status for a call that containerd did not answer.
    fn unavailable(&self, error: &(dyn std::error::Error + 'static)) -> Status {
        static UNAVAILABLE: LogLimit = LogLimit::new();
        let mut cause = error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        let message = format!("containerd does not answer at {}: {cause}", self.address.display());
        if let Some(left_out) = UNAVAILABLE.admit() {
            tracing::warn!("{message}{left_out}");
        }
        Status::unavailable(message)
    }
}

/// The same path at the authority of Unix sockets.
fn local(uri: &Uri) -> Result<Uri, http::uri::InvalidUriParts> {
    let mut parts = Parts::default();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(AUTHORITY);
    parts.path_and_query = uri.path_and_query().cloned();
    Uri::from_parts(parts)
}
