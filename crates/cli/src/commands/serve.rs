//! `tarpon serve`: the server of a store. Hidden: other subcommands start it.

use std::path::PathBuf;

use clap::Args;
use tarpon_engine::server_log;

use super::scrub::ScrubChoice;
use super::session::{Session, runtime};
use crate::cli::Global;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::logging;

/// Serve the mounts of a store until the last one is gone
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Serve nothing: wait until the standard input ends, then unmount what a dead server left there
    #[arg(long, value_name = "DIR")]
    guard: Option<PathBuf>,
    /// Serve nothing: prepare the image that a line on the standard input names, and say what came of it
    #[arg(long)]
    offer: bool,
    #[command(flatten)]
    scrub: ScrubChoice,
}

impl Serve {
    pub(crate) fn run(&self, global: &Global) -> Result {
        if let Some(folder) = &self.guard {
            return tarpon_engine::guard(std::io::stdin(), folder)
                .map_err(|error| Failure::new(Exit::Failure, format_args!("cannot unmount: {error}")));
        }
        let session = Session::open_as_it_is(global)?;
        logging::bound(server_log::path(session.engine().store()));
        if self.offer {
            let offered = tarpon_engine::offer(session.engine(), std::io::stdin(), std::io::stdout());
            return runtime()?.block_on(offered).doing(|| "cannot prepare the image");
        }
        runtime()?
            .block_on(tarpon_engine::serve(session.engine(), self.scrub.scrub, std::io::stdout()))
            .doing(|| "cannot serve the store")
    }
}
