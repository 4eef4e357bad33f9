//! `tarpon recover`: after a server died.

use clap::Args;

use super::session::Session;
use super::status;
use crate::cli::Global;
use crate::failure::{Context, Result};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tarpon recover
  tarpon recover --json

Programs that had files open in a mount whose server died must be started again.";

/// Mount again what a dead server left
///
/// Removes mounts whose server died and mounts the same images again, at the same digests. Does nothing while a server
/// runs.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Recover {
    /// Print the mounts as JSON
    #[arg(long)]
    json: bool,
}

impl Recover {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let mounts = session.client().recover().doing(|| "cannot recover the mounts")?;
        if self.json { output::json(&mounts) } else { output::text(&status::overview(&mounts)) }
    }
}
