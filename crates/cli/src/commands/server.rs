//! `tarpon server`: the process that serves the mounts of a store.

use clap::{Args, Subcommand};

use super::session::Session;
use crate::failure::{Context, Result};
use crate::global::Global;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tarpon server upgrade                        after an update of tarpon
  tarpon --store /srv/tarpon server upgrade";

/// Control the process that serves the mounts of the store
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Server {
    #[command(subcommand)]
    command: ServerCommand,
}

#[derive(Debug, Subcommand)]
enum ServerCommand {
    Upgrade(Upgrade),
}

/// Replace the running server by this version of tarpon
///
/// Mounts, containers and open files are not affected: reads wait while the new server takes the mounts over. If the new
/// program does not start, the old one continues. A daemon (tarpon daemon) executes the new program and stays the same process.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct Upgrade {}

impl Server {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let ServerCommand::Upgrade(Upgrade {}) = &self.command;
        let session = Session::open(global)?;
        let upgraded = session.client().upgrade().doing(|| "cannot upgrade the server")?;
        if !upgraded && !global.quiet {
            output::note("no server runs: the next one is of this version");
        }
        Ok(())
    }
}
