//! `tarpon serve`: the server of a store. Hidden: other subcommands start it.

use clap::Args;

use super::session::{Session, runtime};
use crate::cli::Global;
use crate::failure::{Context, Result};

/// Serve the mounts of a store until the last one is gone
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Keep the store below this many bytes
    #[arg(long, value_name = "BYTES")]
    store_size: Option<u64>,
}

impl Serve {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let session = Session::open_with_size(global, self.store_size)?;
        runtime()?
            .block_on(tarpon_engine::serve(session.engine(), std::io::stdout()))
            .doing(|| "cannot serve the store")
    }
}
