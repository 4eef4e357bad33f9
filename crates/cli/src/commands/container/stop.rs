//! `tarpon stop`.

use std::time::Duration;

use clap::Args;
use tarpon_engine::ContainerName;

use super::each;
use crate::cli::Global;
use crate::commands::session::Session;
use crate::failure::Result;

const EXAMPLES: &str = "\
Examples:
  tarpon stop web
  tarpon stop -t 60 web db";

/// Stop containers
///
/// Sends the signal that the image or --stop-signal names, TERM if neither does, and KILL if that was not enough. What a
/// container wrote stays until `tarpon rm`, unless it was run with --rm.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Stop {
    /// Seconds until a container that does not stop is killed; 0 kills it at once
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
    time: u32,
    /// Containers, by their whole names
    #[arg(value_name = "NAME", required = true)]
    names: Vec<ContainerName>,
}

impl Stop {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let patience = Duration::from_secs(self.time.into());
        each(&self.names, "stop", |name| session.engine().stop_container(name, patience))
    }
}
