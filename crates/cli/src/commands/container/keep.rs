//! `tarpon keep`: supervises a detached container until it ends. Hidden: `tarpon run --detach` starts it.

use std::os::fd::AsFd;

use clap::Args;
use tarpon_engine::{ContainerName, Signals};

use crate::cli::Global;
use crate::commands::session::{Session, runtime};
use crate::failure::{Context, Failure, Result};

/// Keep a container until it ends
#[derive(Debug, Args)]
pub(crate) struct Keep {
    /// The container; its lock is the standard input
    name: ContainerName,
}

impl Keep {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let doing = || format!("cannot keep {}", self.name);
        let session = Session::open_as_it_is(global)?;
        let lock = std::io::stdin().as_fd().try_clone_to_owned().doing(doing)?;
        runtime()?.block_on(async {
            let mut signals = Signals::listen().doing(doing)?;
            let kept = session.engine().keep(&self.name, lock, std::io::stdout(), &mut signals).await;
            kept.map_err(|failed| Failure::engine(doing(), failed.error))
        })
    }
}
