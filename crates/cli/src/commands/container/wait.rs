//! `tarpon wait`.

use clap::Args;
use tarpon_engine::ContainerName;

use super::each;
use crate::cli::Global;
use crate::commands::session::Session;
use crate::failure::Result;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tarpon wait build                       print its exit code when it has ended
  test \"$(tarpon wait build)\" = 0

A container that nobody saw end has \"unknown\" instead of a code.";

/// Wait until containers have ended, and print their exit codes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
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
        each(&self.names, "wait for", |name| {
            let code = engine.container_named(name).and_then(|name| engine.wait_container(&name))?;
            let code = code.map_or_else(|| "unknown".to_owned(), |code| code.to_string());
            if printed.is_ok() {
                printed = output::text(&format!("{code}\n"));
            }
            Ok(())
        })?;
        printed
    }
}
