//! `tarpon kill`.

use clap::Args;
use tarpon_engine::ContainerName;

use super::each;
use crate::cli::Global;
use crate::commands::session::Session;
use crate::failure::Result;

const EXAMPLES: &str = "\
Examples:
  tarpon kill web
  tarpon kill -s HUP web        a name or a number, with or without SIG";

/// Send containers a signal
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
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
        each(&self.names, "send a signal to", |name| session.engine().kill_container(name, &self.signal))
    }
}
