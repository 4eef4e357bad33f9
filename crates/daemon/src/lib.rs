//! The server of a store as a service: it runs even if nothing is mounted, and offers the engine over HTTP on a Unix socket.
//!
//! ```text
//!                     tarpon daemon
//!  ┌──────────────────────────────────────────────────────────┐
//!  │ server of the store        ◄── line protocol ── tarpon … │   its own runtime: reads never wait for the work below
//!  │   mounts, reads, metrics   ◄──┐                          │
//!  │ API ── prepare, run, pull ────┘ engine                   │   a second runtime, with limits of its own
//!  └────▲─────────────────────────────────────────────────────┘
//!       └── HTTP/JSON ── curl …
//! ```
//!
//! The API is a client of the server like every other. So its effects are the same as those of the command line, and the
//! command line finds the daemon as it finds any server.

mod answer;
mod api;
mod children;
mod connections;
mod failure;
mod feed;
mod flag;
mod image;
mod jobs;
mod learning;
mod limits;
mod state;
mod write_timeout;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::pin::pin;
use std::process::Command;
use std::time::{Duration, Instant};

use futures::{FutureExt as _, StreamExt as _, stream};
use tarpon_engine::oci::IndexRepo;
use tarpon_engine::{
    ContainerName, ContainerStatus, Ended, Engine, Error, ErrorKind, Lifecycle, PermanentServer, PolicyChoice, Result,
    ServerOptions, TierLocation, service,
};

pub use api::description;
use connections::Api;
pub use learning::Learning;
use state::ApiState;
pub use tarpon_engine::service::Socket;

/// How long all containers together may take to stop when the daemon ends, before they are killed: as long as one with `tarpon stop`.
const STOPPING: Duration = Duration::from_secs(10);

/// Interval between two checks of containers that have not stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Containers that are signalled at the same time. Each takes a thread, and a process of its runtime.
const SIGNALLED_AT_ONCE: usize = 16;

/// The default path of the API socket: `/run/tarpon/tarpon.sock` as root, else in the user's own runtime directory.
pub fn default_path() -> Result<PathBuf> {
    let user = || std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let folder = if rustix::process::geteuid().is_root() { Some(PathBuf::from("/run")) } else { user() };
    folder.map(|folder| folder.join("tarpon/tarpon.sock")).ok_or_else(|| {
        Error::new(ErrorKind::Other, "choose the path of the socket", "$XDG_RUNTIME_DIR is not set")
            .hint("set it with --listen unix:///PATH")
    })
}

/// Options of a daemon.
#[derive(Debug)]
pub struct Options {
    /// Socket of the API.
    pub socket: Socket,
    /// Address of the metrics endpoint.
    pub metrics: Option<SocketAddr>,
    /// The command line of the process that keeps a container ([`tarpon_engine::RunRequest::keeper_command`]).
    pub keeper_command: Vec<OsString>,
    /// The OCI runtime if a request names none; else it is searched for.
    pub runtime: Option<PathBuf>,
    /// Which images are accepted. A request cannot choose another policy.
    pub policy: PolicyChoice,
    /// Where indexes of images may be, besides their repositories. A request cannot name others: what is in them is trusted for all users of
    /// the store.
    pub index_repos: Vec<IndexRepo>,
    /// Where hosts share layers. A request cannot name another tier, for the same reason.
    pub tier: Option<TierLocation>,
    /// Rate of the scrub of the store in bytes per second, if it is enabled.
    pub scrub: Option<NonZeroU64>,
    /// How learned starts are published; `None`: they stay on this host.
    pub learning: Option<Learning>,
    /// The program for [`Daemon::upgrade`]. `None`: there are no upgrades.
    pub program: Option<PathBuf>,
}

/// A running daemon.
pub struct Daemon {
    engine: Engine,
    server: PermanentServer,
    api: Api,
}

impl Daemon {
    /// Becomes the server of the engine's store, and answers at the socket. If another process serves mounts of the store, the daemon uses
    /// that server, and replaces it when it has ended.
    ///
    /// # Errors
    /// Another process without mounts serves the store permanently, or the daemon cannot listen.
    pub async fn start(engine: Engine, options: Options) -> Result<Self> {
        let Options {
            mut socket,
            metrics,
            keeper_command,
            runtime,
            policy,
            index_repos,
            tier,
            scrub,
            learning,
            program,
        } = options;
        children::reap();
        let place = socket.place();
        let protected = socket.path().into_iter().collect();
        let options = ServerOptions { metrics, protected, scrub, program };
        let server = PermanentServer::start(&engine, options, socket.take_store()).await?;
        let state =
            ApiState::new(engine.clone(), server.observer(), keeper_command, runtime, policy, index_repos, tier);
        match Api::start(state, socket, learning) {
            Ok(api) => {
                tracing::info!("listening at {place}");
                service::notify(service::READY);
                Ok(Self { engine, server, api })
            }
            Err(error) => {
                // Mounts of an earlier server are mounted again by now.
                server.suspend().await;
                Err(error)
            }
        }
    }

    /// Whether this process serves the mounts. `false`: another one does, until it ends.
    pub fn serves(&self) -> bool {
        self.server.serves()
    }

    /// Resolves at SIGTERM, SIGINT or for an upgrade.
    pub async fn until_signal(&mut self) -> Ended {
        self.server.until_signal().await
    }

    /// Executes a newer program in this process, which continues as the daemon: mounts, containers and the socket stay. Requests in
    /// progress have ten seconds to finish. Returns the signal if one to end arrives meanwhile: then the daemon has ended.
    ///
    /// # Errors
    /// [`ErrorKind::Other`] if the program cannot be executed. This process must end then.
    pub async fn upgrade(self, mut command: Command) -> Result<Ended> {
        let Self { engine, mut server, api } = self;
        service::notify(&service::reloading());
        let mut pausing = pin!(api.pause());
        let (socket, signal) = tokio::select! {
            biased;
            signal = server.signal() => {
                service::notify(service::STOPPING);
                (pausing.await, Some(signal))
            }
            socket = &mut pausing => (socket, server.signal().now_or_never()),
        };
        if let Some(signal) = signal {
            drop(socket);
            end(&engine, server).await;
            return Ok(signal);
        }
        let passed = socket.map_or(Ok(()), |socket| {
            let passed = socket.pass(&mut command);
            // Its file stays.
            std::mem::forget(socket);
            passed
        });
        let error = passed.map_or_else(|error| error, |()| server.execute(command));
        Err(Error::new(ErrorKind::Other, "execute the new program", error))
    }

    /// Ends the daemon: it accepts no more connections, stops all containers and unmounts everything. Mounts that belong to no
    /// container are mounted again by the next server of the store. While a mount is in use, all of them stay, and a server in
    /// the background serves them.
    pub async fn stop(self) {
        let Self { engine, server, api } = self;
        service::notify(service::STOPPING);
        api.stop().await;
        end(&engine, server).await;
    }
}

/// Ends what is left without the API.
async fn end(engine: &Engine, server: PermanentServer) {
    stop_containers(engine).await;
    server.retire().await;
}

/// Ends all containers of the store in the time that `tarpon stop` gives one: nothing would answer their reads any more. All are
/// signalled first, and those that run at the end of the common time are killed.
async fn stop_containers(engine: &Engine) {
    let until = Instant::now() + STOPPING;
    stream::iter(not_ended(engine).await)
        .for_each_concurrent(SIGNALLED_AT_ONCE, |container| signal(engine, container))
        .await;
    let mut left = not_ended(engine).await;
    while left.iter().any(|container| container.standing == Lifecycle::Running) && Instant::now() < until {
        tokio::time::sleep(POLL_INTERVAL).await;
        left = not_ended(engine).await;
    }
    stream::iter(left).for_each_concurrent(SIGNALLED_AT_ONCE, |container| stop(engine, container.name, until)).await;
}

/// The containers that have not ended, as far as is known.
async fn not_ended(engine: &Engine) -> Vec<ContainerStatus> {
    let listed = blocking(engine, "list the containers", Engine::containers).await;
    let mut containers = listed.unwrap_or_else(|error| {
        tracing::warn!(%error, "containers not stopped");
        Vec::new()
    });
    containers.retain(|container| !container.has_ended());
    containers
}

/// Signals a container to stop.
async fn signal(engine: &Engine, container: ContainerStatus) {
    let (Ok(record), name) = (container.record, container.name) else { return };
    let container_name = name.clone();
    let sent =
        blocking(engine, "stop it", move |engine| engine.kill_container(&container_name, &record.stop_signal)).await;
    if let Err(error) = sent {
        // It is still starting or has just ended: it is checked again.
        tracing::debug!(%name, %error, "stop signal not sent");
    }
}

/// Waits until a container has ended; kills it if it still runs at `until`.
async fn stop(engine: &Engine, name: ContainerName, until: Instant) {
    let stopped = name.clone();
    let stop = move |engine: &Engine| engine.stop_container(&stopped, until.saturating_duration_since(Instant::now()));
    match blocking(engine, "stop it", stop).await {
        Ok(()) => tracing::info!(%name, "stopped"),
        Err(error) => tracing::warn!(%name, %error, "not stopped"),
    }
}

async fn blocking<T: Send + 'static>(
    engine: &Engine,
    step: &'static str,
    call: impl FnOnce(&Engine) -> Result<T> + Send + 'static,
) -> Result<T> {
    let engine = engine.clone();
    let called = tokio::task::spawn_blocking(move || call(&engine)).await;
    called.map_err(|error| Error::new(ErrorKind::Other, step, error))?
}
