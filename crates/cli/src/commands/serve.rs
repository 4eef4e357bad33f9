//! `tarpon serve`: the server of a store. Hidden: other subcommands start it.

use clap::Args;

use super::session::{Session, runtime};
use crate::cli::Global;
use crate::failure::{Context, Result};

/// Serve the mounts of a store until the last one is gone
#[derive(Debug, Args)]
pub(crate) struct Serve {}

impl Serve {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        runtime()?
            .block_on(tarpon_engine::serve(session.engine(), std::io::stdout()))
            .doing(|| "cannot serve the store")
    }
}
