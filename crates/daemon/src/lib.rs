//! The server of a store as a service: it stays when nothing is mounted, and offers the engine over HTTP on a Unix socket.
//!
//! ```text
//!                     tarpon daemon
//!  ┌──────────────────────────────────────────────────────────┐
//!  │ server of the store        ◄── line protocol ── tarpon … │   its own runtime: reads never wait for what is below
//!  │   mounts, reads, metrics   ◄──┐                          │
//!  │ API ── prepare, run, pull ────┘ engine                   │   a second runtime, with limits of its own
//!  └────▲─────────────────────────────────────────────────────┘
//!       └── HTTP/JSON ── curl …
//! ```
//!
//! The API asks the server as every other client does. So nothing that it does can be told from what the command line does, and the
//! command line finds the daemon as it finds any server.

mod api;
mod connections;
mod feed;
mod flag;
mod flights;
mod gates;
mod jobs;
mod patient;
mod progress;
mod socket;
mod state;
mod systemd;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt as _;
use tarpon_engine::{ContainerName, Engine, Error, ErrorKind, Result, Server, start_for_good};

pub use api::description;
use connections::Api;
pub use socket::{Socket, default_path};
use state::State;

/// How long a container may take to stop when the daemon is stopped, before it is killed: as with `tarpon stop`.
const STOPPING: Duration = Duration::from_secs(10);

/// Containers that are stopped at the same time. Each takes a thread until it has ended.
const STOPPED_AT_ONCE: usize = 16;

/// What a daemon is made of, beside its engine.
#[derive(Debug)]
pub struct Options {
    /// Where it listens.
    pub socket: Socket,
    /// Where it tells metrics.
    pub metrics: Option<SocketAddr>,
    /// The command line that keeps containers ([`tarpon_engine::RunRequest::keeper_command`]).
    pub keeper_command: Vec<OsString>,
    /// The OCI runtime, where a request names none and it is not the one that is found.
    pub runtime: Option<PathBuf>,
}

/// A running daemon.
pub struct Daemon {
    engine: Engine,
    server: Server,
    api: Api,
}

impl Daemon {
    /// Becomes the server of the engine's store, and answers at the socket.
    ///
    /// # Errors
    /// Another process serves the store, or it cannot listen.
    pub async fn start(engine: Engine, options: Options) -> Result<Self> {
        let Options { socket, metrics, keeper_command, runtime } = options;
        let server = start_for_good(&engine).await?;
        let place = socket.place();
        let state = State::new(engine.clone(), server.observer(), keeper_command, runtime);
        let told = metrics.map_or(Ok(()), |address| server.tell_metrics(address));
        match told.and_then(|()| Api::start(state, socket)) {
            Ok(api) => {
                tracing::info!("listening at {place}");
                systemd::notify(systemd::READY);
                Ok(Self { engine, server, api })
            }
            Err(error) => {
                // What an earlier server had mounted is mounted here by now.
                server.suspend().await;
                Err(error)
            }
        }
    }

    /// Resolves at SIGTERM or SIGINT.
    pub async fn until_told(&mut self) {
        let _which = self.server.until_told().await;
    }

    /// Ends: nobody is accepted any more, containers are stopped, everything is unmounted. What was mounted and is not a container's, the
    /// next server of the store mounts again.
    pub async fn stop(self) {
        let Self { engine, server, api } = self;
        systemd::notify(systemd::STOPPING);
        api.stop().await;
        stop_containers(&engine).await;
        server.suspend().await;
    }
}

/// Ends all containers of the store as `tarpon stop` does: nobody would answer their reads any more.
async fn stop_containers(engine: &Engine) {
    let listed = {
        let engine = engine.clone();
        tokio::task::spawn_blocking(move || engine.containers()).await
    };
    let containers = match listed.map_err(|error| Error::new(ErrorKind::Other, "list the containers", error)) {
        Ok(Ok(containers)) => containers,
        Ok(Err(error)) | Err(error) => return tracing::warn!(%error, "containers are not stopped"),
    };
    let running = containers.into_iter().filter(|container| !container.has_ended());
    futures::stream::iter(running).for_each_concurrent(STOPPED_AT_ONCE, |container| stop(engine, container.name)).await;
}

async fn stop(engine: &Engine, name: ContainerName) {
    let (engine, stopped) = (engine.clone(), name.clone());
    let done = tokio::task::spawn_blocking(move || engine.stop_container(&stopped, STOPPING)).await;
    match done {
        Ok(Ok(())) => tracing::info!(%name, "stopped"),
        Ok(Err(error)) => tracing::warn!(%name, %error, "not stopped"),
        Err(error) => tracing::warn!(%name, %error, "not stopped"),
    }
}
