//! `tarpon stop`, `kill`, `rm` and `wait`: the end of containers.

use std::time::Duration;

use clap::Args;
use tarpon_engine::ContainerName;

use crate::commands::each::each;
use crate::commands::session::Session;
use crate::failure::{Context, Result};
use crate::global::Global;
use crate::output;

const STOP_EXAMPLES: &str = "\
Examples:
  tarpon stop web
  tarpon stop -t 60 web db";

/// Stop containers
///
/// Sends the signal that the image or --stop-signal names, TERM if neither does, and KILL if that was not enough. What a
/// container wrote stays until `tarpon rm`, unless it was run with --rm.
#[derive(Debug, Args)]
#[command(after_help = STOP_EXAMPLES)]
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
        each(&self.names, |name| {
            session.engine().stop_container(name, patience).doing(|| format!("cannot stop {name}"))
        })
    }
}

const KILL_EXAMPLES: &str = "\
Examples:
  tarpon kill web
  tarpon kill -s HUP web        a name or a number, with or without SIG";

/// Send containers a signal
#[derive(Debug, Args)]
#[command(after_help = KILL_EXAMPLES)]
pub(crate) struct Kill {
    /// Which signal
    #[arg(short, long, value_name = "SIGNAL", default_value = "KILL", value_parser = tarpon_engine::signal_name)]
    signal: String,
    /// Containers, by their whole names
    #[arg(value_name = "NAME", required = true)]
    names: Vec<ContainerName>,
}

impl Kill {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        each(&self.names, |name| {
            session.engine().kill_container(name, &self.signal).doing(|| format!("cannot send a signal to {name}"))
        })
    }
}

const RM_EXAMPLES: &str = "\
Examples:
  tarpon rm web
  tarpon rm -f web              kill it first, if it runs";

/// Remove containers, with everything that they wrote
#[derive(Debug, Args)]
#[command(after_help = RM_EXAMPLES)]
pub(crate) struct Rm {
    /// Also those that run, are lost, or have a record that cannot be read
    #[arg(short, long)]
    force: bool,
    /// Containers, by their whole names
    #[arg(value_name = "NAME", required = true)]
    names: Vec<ContainerName>,
}

impl Rm {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        each(&self.names, |name| {
            session.engine().remove_container(name, self.force).doing(|| format!("cannot remove {name}"))
        })
    }
}

const WAIT_EXAMPLES: &str = "\
Examples:
  tarpon wait build                       print its exit code when it has ended
  test \"$(tarpon wait build)\" = 0

A container that nobody saw end has \"unknown\" instead of a code.";

/// Wait until containers have ended, and print their exit codes
#[derive(Debug, Args)]
#[command(after_help = WAIT_EXAMPLES)]
pub(crate) struct Wait {
    /// Containers; the beginnings of their names are enough
    #[arg(value_name = "NAME", required = true)]
    names: Vec<ContainerName>,
}

impl Wait {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let engine = session.engine();
        let mut printed = Ok(());
        each(&self.names, |name| {
            let code = engine.container_named(name).and_then(|name| engine.wait_container(&name));
            let code = code.doing(|| format!("cannot wait for {name}"))?;
            let code = code.map_or_else(|| "unknown".to_owned(), |code| code.to_string());
            if printed.is_ok() {
                printed = output::text(&format!("{code}\n"));
            }
            Ok(())
        })?;
        printed
    }
}
