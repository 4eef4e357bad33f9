//! `tarpon tier`: maintains a bucket or folder in which hosts share layers.

mod gc;
mod layer;
mod opened;
mod usage;
mod verify;

use clap::{Args, Subcommand};

use crate::failure::Result;
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tarpon tier usage --tier s3://images/tarpon              how much there is, and when it was used
  tarpon tier gc --unused 30d --tier s3://images/tarpon    remove what no host has used for 30 days
  tarpon tier verify --tier file:///srv/tarpon             compare everything with its digests

The tier is that of --tier or $TARPON_TIER. Credentials for a bucket come from the environment.
Hosts may use the tier meanwhile: what they miss, they fetch from the registry.";

/// Manage a tier, in which hosts share layers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Tier {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Usage(usage::Usage),
    Gc(gc::Gc),
    Verify(verify::Verify),
}

impl Tier {
    pub(crate) fn run(self, global: &Global) -> Result {
        match self.command {
            Command::Usage(command) => command.run(),
            Command::Gc(command) => command.run(),
            Command::Verify(command) => command.run(global),
        }
    }
}
