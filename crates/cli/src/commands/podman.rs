//! `tarpon podman`: images that Podman runs without pulling them.

mod add;
mod layers;
mod ls;
mod rm;
pub(super) mod setup;

use clap::{Args, Subcommand};

use crate::failure::Result;
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tarpon podman setup                                 configure Podman, once
  tarpon podman add docker.io/library/redis:7         add an image; nothing is pulled
  podman run docker.io/library/redis:7                starts at once and fetches data on demand
  tarpon podman ls
  tarpon podman rm docker.io/library/redis:7

After a reboot or a crash of the server, run `tarpon recover`.";

/// Run images lazily with Podman
///
/// Added images appear in `podman images` under their own names and IDs, in an additional image store that tarpon's server provides.
/// With `layers`, `podman pull` of images in a suitable format is lazy, too. Without root, Podman's user namespace is used.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Podman {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Add(Box<add::Add>),
    Rm(rm::Rm),
    Ls(ls::Ls),
    Setup(setup::Setup),
    Layers(layers::Layers),
}

impl Podman {
    /// Whether Podman gets an additional store.
    pub(crate) fn sets_up(&self) -> bool {
        matches!(&self.command, Command::Setup(setup) if !setup.undo)
    }

    pub(crate) fn run(self, global: &Global) -> Result {
        match self.command {
            Command::Add(command) => command.run(global),
            Command::Rm(command) => command.run(global),
            Command::Ls(command) => command.run(global),
            Command::Setup(command) => command.run(global),
            Command::Layers(command) => command.run(global),
        }
    }
}
