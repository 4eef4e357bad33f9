//! `tarpon cache`: maintains the store. Works on the store directly, whether a server runs or not.

mod ls;
mod remove;
mod usage;
mod verify;

use clap::{Args, Subcommand};
use tarpon_engine::open_store;

use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tarpon cache usage                            disk usage and limits
  tarpon cache ls                               images that can be mounted without a registry
  tarpon cache verify                           verify the digests of all content
  tarpon cache rm docker.io/library/alpine      remove an image and the content that only it needs
  tarpon cache clear                            remove everything that is not mounted

Content of live mounts is never removed. A committed image that was not pushed is removed only by
`rm --force`.";

/// Manage the content of the store
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Cache {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(ls::Ls),
    Usage(usage::Usage),
    Gc(remove::Gc),
    Verify(verify::Verify),
    Rm(remove::Rm),
    Clear(remove::Clear),
}

impl Cache {
    pub(crate) fn run(self, global: &Global) -> Result {
        let folder = global.store_folder()?;
        let failure = |error: &dyn std::fmt::Display| {
            Failure::new(Exit::Store, format_args!("cannot open the store {}: {error}", folder.display()))
        };
        let store = open_store(&folder).map_err(|error| failure(&error))?;
        if let Some(isolation) = global.isolation {
            let hint = "choose another store with --store DIR, or omit --isolation and unset $TARPON_ISOLATION";
            store.set_isolation(isolation).map_err(|error| failure(&error).hint(hint))?;
        }
        match self.command {
            Command::Ls(command) => command.run(&store),
            Command::Usage(command) => command.run(&store),
            Command::Gc(command) => command.run(&store),
            Command::Verify(command) => command.run(&store, global),
            Command::Rm(command) => command.run(&store),
            Command::Clear(command) => command.run(&store),
        }
    }
}
