//! `tarpon rm`.

use clap::Args;
use tarpon_engine::ContainerName;

use super::each;
use crate::cli::Global;
use crate::commands::session::Session;
use crate::failure::Result;

const EXAMPLES: &str = "\
Examples:
  tarpon rm web
  tarpon rm -f web              kill it first, if it runs";

/// Remove containers, with everything that they wrote
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
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
        each(&self.names, "remove", |name| session.engine().remove_container(name, self.force))
    }
}
