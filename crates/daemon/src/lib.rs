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
use std::time::Duration;

use futures::StreamExt as _;
use tarpon_engine::{ContainerName, Engine, Error, ErrorKind, Result, start_for_good};

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
}

/// Serves the engine's store until SIGTERM or SIGINT. What is mounted then and is not a container's, the next server mounts again.
///
/// # Errors
/// It could not begin to.
pub async fn serve(engine: Engine, options: Options) -> Result<()> {
    let mut server = start_for_good(&engine).await?;
    let began = async {
        options.metrics.map_or(Ok(()), |address| server.tell_metrics(address))?;
        let place = options.socket.place();
        let state = State::new(engine.clone(), server.observer(), options.keeper_command);
        Ok((Api::start(state, options.socket)?, place))
    };
    let (api, place) = match began.await {
        Ok(began) => began,
        Err(error) => {
            server.suspend().await;
            return Err(error);
        }
    };
    tracing::info!("listening at {place}");
    systemd::notify(systemd::READY);
    let _which = server.until_told().await;
    systemd::notify(systemd::STOPPING);
    api.stop().await;
    stop_containers(&engine).await;
    server.suspend().await;
    Ok(())
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
