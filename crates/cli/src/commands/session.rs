//! The common environment of subcommands: the store, its engine, the client of its server, and a runtime.

use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use tarpon_engine::{Client, Engine, EngineOptions};
use tokio::runtime::{Builder, Runtime};

use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;

/// What the kernel adds to the path of a program whose file was replaced or deleted.
const DELETED: &[u8] = b" (deleted)";

/// An open store.
pub(crate) struct Session {
    engine: Engine,
}

impl Session {
    /// Opens the store that the options name.
    pub(crate) fn open(global: &Global) -> Result<Self> {
        let store = global.store_folder()?;
        // Without /proc the command is unknown; a running server can still be used.
        let server_command = server_command(&store).unwrap_or_default();
        let engine = Engine::open(EngineOptions { store, server_command, worker_command: worker_command() })
            .map_err(Failure::from)?;
        if let Some(isolation) = global.isolation {
            engine.set_isolation(isolation).map_err(Failure::from)?;
        }
        Ok(Self { engine })
    }

    /// Like [`Session::open`], for a process that tarpon itself starts: the isolation of the store is already set.
    pub(crate) fn open_as_it_is(global: &Global) -> Result<Self> {
        Self::open(&Global { isolation: None, ..global.clone() })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The command line that supervises a container, without the container's name.
    pub(crate) fn keeper_command(&self) -> Result<Vec<OsString>> {
        own_command(self.engine.store().folder(), "keep")
    }

    /// The command line of a subcommand of this program, on this store.
    pub(crate) fn command(&self, subcommand: &str) -> Result<Vec<OsString>> {
        own_command(self.engine.store().folder(), subcommand)
    }

    pub(crate) fn client(&self) -> Client {
        self.engine.client()
    }
}

/// The command line that starts the server of a store.
pub(super) fn server_command(store: &Path) -> Result<Vec<OsString>> {
    own_command(store, "serve")
}

/// The command line that starts a worker. Always of the very program that runs, which an update may have replaced or deleted.
pub(super) fn worker_command() -> Vec<OsString> {
    vec!["/proc/self/exe".into(), "worker".into()]
}

/// A command line of this program, on this store.
fn own_command(store: &Path, subcommand: &str) -> Result<Vec<OsString>> {
    Ok(vec![program()?.into(), "--store".into(), store.into(), subcommand.into()])
}

/// The path of this program, which an update may have replaced.
fn program() -> Result<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let program = std::env::current_exe().doing(|| "cannot determine the path of this program")?;
    match program.as_os_str().as_bytes().strip_suffix(DELETED) {
        Some(path) if !program.exists() => Ok(std::ffi::OsStr::from_bytes(path).into()),
        _ => Ok(program),
    }
}

/// Threads of a runtime that may block on the disk or the processor at the same time: one for each of the 32 clients that
/// a server answers at once, and as many for decoding and writing, which memory limits to fewer. More would only add stacks.
const BLOCKING_THREADS: usize = 64;

/// Maximum number of threads for the tasks of a command that soon ends. Layers are imported in separate threads, so these wait for the network and
/// decrypt, which four do at several GiB/s. One for each processor of a large machine would take longer to start than many commands run.
const COMMAND_THREADS: usize = 4;

/// A runtime with a thread for each processor, for processes that serve mounts.
pub(crate) fn runtime() -> Result<Runtime> {
    build(&mut Builder::new_multi_thread())
}

/// A runtime for a command that ends when its work is done.
pub(crate) fn command_runtime() -> Result<Runtime> {
    let processors = available_parallelism().map_or(1, NonZero::get);
    build(Builder::new_multi_thread().worker_threads(command_threads(processors)))
}

fn command_threads(processors: usize) -> usize {
    processors.min(COMMAND_THREADS)
}

/// A runtime without threads of its own, for the keeper of a container: there is one for each container, as long as that runs, and all it
/// does meanwhile is wait.
pub(crate) fn keeper_runtime() -> Result<Runtime> {
    build(&mut Builder::new_current_thread())
}

fn build(builder: &mut Builder) -> Result<Runtime> {
    builder
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("tarpon")
        .build()
        .map_err(|error| Failure::new(Exit::Failure, format_args!("cannot start threads: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_machine_gives_a_command_few_threads_and_a_keeper_one() {
        assert_eq!([1, 2, 64].map(command_threads), [1, 2, COMMAND_THREADS]);
        let workers = |runtime: Result<Runtime>| runtime.expect("threads").metrics().num_workers();
        assert!(workers(command_runtime()) <= COMMAND_THREADS);
        assert_eq!(workers(keeper_runtime()), 1);
    }
}
