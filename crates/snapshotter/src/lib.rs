//! Images for containerd: the snapshots service that containerd calls through a proxy plugin.
//!
//! ```text
//! containerd ──gRPC──► rpc ─► snapshots ─┬─► records     all snapshots: one directory each
//!                                        └─► images ──► the engine, and the store's server, which mounts
//!                                              ▲ credentials of pulls
//! kubelet ─────gRPC──► cri ────────────────────┴──► containerd's CRI image service
//! ```
//!
//! A snapshot is either a directory that containerd unpacks a layer into, or the layers of an image from the base up to one of them, which
//! the store's server mounts. Both are used in the same way: the snapshotter returns one overlay, and containerd mounts it.
//!
//! The records hold all state. The snapshotter knows nothing of containerd's namespaces, which are part of the names that
//! containerd passes.

mod cri;
mod error;
mod filter;
mod flights;
mod images;
mod labels;
mod messages;
mod mounts;
mod pull_credentials;
mod record;
mod records;
mod rpc;
mod services;
mod snapshots;
#[cfg(test)]
mod tests;
mod usage;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use rustix::fs::FlockOperation;
use tarpon_engine::service::{self, Socket};
use tarpon_engine::store::FileLock;
use tarpon_engine::{Ended, Engine, ErrorKind, LogLimit, ResultExt, allow_open_files};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;

use self::cri::CriProxy;
use self::images::EngineImages;
pub use self::images::{ImageOptions, PlainImages};
use self::pull_credentials::PullCredentials;
use self::rpc::Rpc;
use self::services::Services;
use self::snapshots::Snapshots;

/// How long calls in progress may take when the snapshotter is stopped. Interrupted preparations start again next time.
const DRAIN: Duration = Duration::from_secs(10);

/// Pause after a failed accept.
const BACKOFF: Duration = Duration::from_millis(100);

/// Calls of one connection that are processed at once. Containerd has one connection, and pulls a few layers at a time.
const CALLS: usize = 64;

/// Characters with a special meaning in the options of an overlay.
const SPECIAL: [char; 3] = [':', ',', '\\'];

/// Options of a snapshotter: where it keeps its snapshots and where it listens.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the snapshots; created if missing.
    pub root: PathBuf,
    /// The socket.
    pub address: PathBuf,
    /// How images are accessed.
    pub images: ImageOptions,
    /// The socket of containerd whose CRI image service is served too, with the credentials of its pulls for the images. `None`: it is
    /// not.
    pub cri: Option<PathBuf>,
}

/// Serves containerd until SIGTERM or SIGINT. Mounts stay.
pub async fn serve(engine: &Engine, options: Options) -> tarpon_engine::Result<Ended> {
    if !rustix::process::geteuid().is_root() {
        let step = "serve containerd";
        return Err(tarpon_engine::Error::new(ErrorKind::CannotMount, step, "only root may mount for containerd"));
    }
    allow_open_files();
    let stop = stopped().context(ErrorKind::Store, "listen for signals")?;
    let root = create_root(&options.root).context(ErrorKind::Store, "make the snapshotter's directory")?;
    let _lock = lock(&root).context(ErrorKind::Store, "lock the snapshotter's directory")?;
    let credentials = Arc::new(PullCredentials::default());
    let images = Arc::new(EngineImages::new(engine.clone(), options.images, credentials.clone()));
    let snapshots = Snapshots::open(&root, images).context(ErrorKind::Store, "read the snapshots")?;
    let snapshots = Arc::new(snapshots);
    let step = format!("listen at {}", options.address.display());
    let socket = Socket::make(&options.address).context(ErrorKind::Store, &step)?;
    let listener = socket.listener().context(ErrorKind::Store, &step)?;
    let restored = tokio::spawn({
        let snapshots = snapshots.clone();
        async move {
            if let Err(error) = snapshots.clean_up().await {
                tracing::warn!(%error, "cannot clean up after the previous run");
            }
            snapshots.restore().await;
        }
    });
    service::notify(service::READY);
    tracing::info!(address = %options.address.display(), root = %root.display(), "ready");
    let mut ended = Ended::Terminated;
    let stop = async { ended = stop.await };
    let images = options.cri.map(|containerd| CriProxy::new(containerd, credentials, snapshots.clone()));
    let served = answer(listener, Services { snapshots: Rpc(snapshots), images }, stop).await;
    restored.abort();
    drop(socket);
    served.context(ErrorKind::Store, "serve containerd")?;
    Ok(ended)
}

/// Serves calls until `stop`, then gives calls in progress [`DRAIN`] to finish.
async fn answer(
    socket: UnixListener,
    services: Services,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    let (stopping, stop_requested) = tokio::sync::oneshot::channel::<()>();
    let incoming = stream::unfold(socket, |socket| async move { Some((accept(&socket).await, socket)) });
    let server = Server::builder().concurrency_limit_per_connection(CALLS);
    let stopped = async move {
        stop.await;
        drop(stopping);
    };
    let late = async move {
        let _dropped = stop_requested.await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        done = server.serve_with_incoming_shutdown(services, Box::pin(incoming), stopped) => done,
        () = late => Ok(()),
    }
}

/// The next connection. Errors are retried: most likely file descriptors ran out, and another connection must end first.
async fn accept(socket: &UnixListener) -> std::io::Result<UnixStream> {
    loop {
        match socket.accept().await {
            Ok((stream, _)) => return Ok(stream),
            Err(error) => {
                static REFUSED: LogLimit = LogLimit::new();
                if let Some(left_out) = REFUSED.admit() {
                    tracing::warn!(%error, "a connection was not accepted{left_out}");
                }
                tokio::time::sleep(BACKOFF).await;
            }
        }
    }
}

fn stopped() -> std::io::Result<impl Future<Output = Ended> + Send> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => Ended::Terminated,
            _ = interrupt.recv() => Ended::Interrupted,
        }
    })
}

/// Creates the root directory, and returns its path as the kernel will list it.
fn create_root(root: &Path) -> std::io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root)?;
    let root = root.canonicalize()?;
    if root.to_str().is_none_or(|path| path.contains(SPECIAL)) {
        let problem = format!("{} has a colon, a comma or a backslash in it, or is not UTF-8", root.display());
        return Err(std::io::Error::other(problem));
    }
    Ok(root)
}

/// Locks the root: only one snapshotter may serve these snapshots at a time.
fn lock(root: &Path) -> std::io::Result<FileLock> {
    let file = File::options().create(true).truncate(false).write(true).open(root.join("lock"))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(std::io::Error::other("another snapshotter uses it")),
        other => other.map(|()| FileLock::of(file)).map_err(Into::into),
    }
}
