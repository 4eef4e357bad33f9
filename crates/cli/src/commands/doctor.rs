//! `tarpon doctor`: what works on this machine, what is missing and the command that mends it.

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  tarpon doctor
  tarpon doctor --json | jq '.modes'

Exits with 0 if images can be mounted in some mode, with 7 if not.";

/// Check what works on this machine
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}
