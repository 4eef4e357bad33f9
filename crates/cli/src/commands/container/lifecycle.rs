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
/// Sends the stop signal of --stop-signal or of the image, else TERM, and then KILL if the container does not stop in time. The
/// container's changes are kept until `tarpon rm`, unless it was run with --rm.
#[derive(Debug, Args)]
#[command(after_help = STOP_EXAMPLES)]
pub(crate) struct Stop {
    /// Seconds to wait before killing a container; 0 kills it at once
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
    time: u32,
    /// Containers, by full name
    #[arg(value_name = "NAME", required = true)]
    names: Vec<ContainerName>,
}

impl Stop {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let timeout = Duration::from_secs(self.time.into());
        each(&self.names, |name| session.engine().stop_container(name, timeout).doing(|| format!("cannot stop {name}")))
    }
}

const KILL_EXAMPLES: &str = "\
Examples:
  tarpon kill web
  tarpon kill -s HUP web        a name or a number, with or without SIG";

/// Send a signal to containers
#[derive(Debug, Args)]
#[command(after_help = KILL_EXAMPLES)]
pub(crate) struct Kill {
    /// Signal to send
    #[arg(short, long, value_name = "SIGNAL", default_value = "KILL", value_parser = tarpon_engine::signal_name)]
    signal: String,
    /// Containers, by full name
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
  tarpon rm -f web              kill it first if it is running";

/// Remove containers and their changes
#[derive(Debug, Args)]
#[command(after_help = RM_EXAMPLES)]
pub(crate) struct Rm {
    /// Also remove containers that are running, lost or have an unreadable record
    #[arg(short, long)]
    force: bool,
    /// Containers, by full name
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
  tarpon wait build                       print the exit code once it has ended
  test \"$(tarpon wait build)\" = 0

Prints \"unknown\" if the exit code of a container was not recorded.";

/// Wait until containers end, and print their exit codes
#[derive(Debug, Args)]
#[command(after_help = WAIT_EXAMPLES)]
pub(crate) struct Wait {
    /// Containers, by name or unique prefix
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
