//! The hidden subcommands: processes that other subcommands start. `serve` serves the mounts of a store, `worker` receives and
//! decodes for it, `keep` supervises a detached container, `map-ids`
//! maps IDs into a user namespace.

use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Args;
use rustix::process::Pid;
use tarpon_engine::{BackgroundOptions, ContainerName, Signals, server_log};

use super::scrub::ScrubChoice;
use super::session::{Session, command_runtime, keeper_runtime, runtime, server_command};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::logging;

/// Serve the mounts of a store until the last one is unmounted
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Take the place of the running server, and adopt its mounts
    #[arg(long)]
    replace: bool,
    /// Do not serve: hold the connections of the server whose socket standard input is, and start its successors
    #[arg(long, value_name = "SOCKET")]
    hold: Option<PathBuf>,
    /// With --hold: a directory from which a dead mount is removed
    #[arg(long, value_name = "DIR", requires = "hold")]
    dead_mount: Vec<PathBuf>,
    /// Do not serve: prepare the image that a line on standard input names, and print the result
    #[arg(long)]
    offer: bool,
    #[command(flatten)]
    scrub: ScrubChoice,
}

impl Serve {
    pub(crate) fn run(&self, global: &Global) -> Result {
        // Before the first thread.
        tarpon_engine::keep_mount_privileges().doing(|| "cannot serve the store")?;
        if let Some(socket) = &self.hold {
            let successor = server_command(&global.store_folder()?)?;
            return tarpon_engine::hold(socket.clone(), successor, self.dead_mount.clone())
                .doing(|| "cannot hold connections");
        }
        let session = Session::open_as_it_is(global)?;
        logging::bound(server_log::path(session.engine().store()));
        if self.offer {
            let offered = tarpon_engine::offer(session.engine().images(), std::io::stdin(), std::io::stdout());
            return command_runtime()?.block_on(offered).doing(|| "cannot prepare the image");
        }
        let options = BackgroundOptions { scrub: self.scrub.scrub, replace: self.replace };
        runtime()?
            .block_on(tarpon_engine::serve(session.engine(), options, std::io::stdout()))
            .doing(|| "cannot serve the store")
    }
}

/// Receive and decode bytes for the process whose socket standard input is, confined
#[derive(Debug, Args)]
pub(crate) struct Worker {}

impl Worker {
    pub(crate) fn run(&self) -> Result {
        tarpon_engine::serve_worker().doing(|| "cannot run a worker")
    }
}

/// Supervise a container until it ends
#[derive(Debug, Args)]
pub(crate) struct Keep {
    /// Container; standard input is its lock
    name: ContainerName,
}

impl Keep {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let doing = || format!("cannot supervise {}", self.name);
        let session = Session::open_as_it_is(global)?;
        let lock = std::io::stdin().as_fd().try_clone_to_owned().doing(doing)?;
        keeper_runtime()?.block_on(async {
            let mut signals = Signals::listen().doing(doing)?;
            let ended = session.engine().keep(&self.name, lock, std::io::stdout(), &mut signals).await;
            ended.map_err(|failed| Failure::engine(doing(), failed.error))
        })
    }
}

/// Map the IDs of /etc/subuid and /etc/subgid into the user namespace of a process, once a line arrives on standard input
#[derive(Debug, Args)]
pub(crate) struct MapIds {
    /// Process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    process: i32,
}

impl MapIds {
    pub(crate) fn run(&self) -> Result {
        let failed = |cause: String| Failure::new(Exit::CannotMount, cause);
        let process = Pid::from_raw(self.process).ok_or_else(|| failed("0 is no process".to_owned()))?;
        tarpon_userns::map_ids(process).map_err(|error| failed(error.to_string()))
    }
}
