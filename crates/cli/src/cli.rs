//! The whole command line: subcommands and global options.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand};
use tarpon_engine::Isolation;

use crate::commands::container::{exec, keep, kill, logs, ps, rm, stop, wait};
use crate::commands::{
    cache, commit, completions, convert, daemon, demo, doctor, index, inspect, ls, man, mount, podman, pull, push,
    record, recover, run, serve, snapshotter, status, trace, umount, why,
};
use crate::exit;

const EXAMPLES: &str = "\
Examples:
  tarpon demo                                     see it work, with nothing installed
  tarpon mount docker.io/library/alpine /mnt      mount an image from a registry
  ls /mnt && tarpon status && tarpon umount /mnt  use it, look at it, let it go
  tarpon run --rm -it alpine sh                   run it
  tarpon ls -l debian:12:/etc                     look into an image without mounting it
  tarpon doctor                                   see what works on this machine

IMAGE is [docker://]NAME[:TAG|@DIGEST], oci:DIR[:TAG], oci-archive:FILE or docker-archive:FILE.";

/// Mount container images lazily, straight from the registry
#[derive(Debug, Parser)]
#[command(name = "tarpon", version, max_term_width = 100, after_help = EXAMPLES)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every subcommand.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Where fetched content is kept [default: /var/lib/tarpon as root, else $XDG_DATA_HOME/tarpon]
    #[arg(long, global = true, value_name = "DIR", env = "TARPON_STORE", hide_env_values = true)]
    #[arg(value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) store: Option<PathBuf>,
    /// Which images of the store share content: all (shared), or those of one repository, to which the registry must grant access each
    /// time (tenant); kept with the store [default: as the store is, shared for a new one]
    #[arg(long, global = true, value_name = "KIND", env = "TARPON_ISOLATION", hide_env_values = true)]
    #[arg(value_parser = isolation)]
    pub(crate) isolation: Option<Isolation>,
    /// Say nothing but errors and what was asked for
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

fn isolation(text: &str) -> std::result::Result<Isolation, String> {
    [Isolation::Shared, Isolation::Tenant]
        .into_iter()
        .find(|kind| kind.name() == text)
        .ok_or_else(|| "expected shared or tenant".to_owned())
}

/// The command line without its hidden subcommands, for completions.
pub(crate) fn visible() -> clap::Command {
    let whole = Cli::command();
    let visible = clap::Command::new("tarpon").args(whole.get_arguments()).disable_help_subcommand(true);
    let shown = whole.get_subcommands().filter(|command| !command.is_hide_set());
    visible.version(env!("CARGO_PKG_VERSION")).subcommands(shown)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Mount(mount::Mount),
    #[command(visible_alias = "unmount")]
    Umount(umount::Umount),
    Run(Box<run::Run>),
    Ps(ps::Ps),
    Exec(exec::Exec),
    Logs(logs::Logs),
    Wait(wait::Wait),
    Stop(stop::Stop),
    Kill(kill::Kill),
    Rm(rm::Rm),
    Commit(Box<commit::Commit>),
    Push(push::Push),
    Pull(pull::Pull),
    Ls(ls::Ls),
    Index(index::Index),
    Record(Box<record::Record>),
    Inspect(inspect::Inspect),
    Convert(convert::Convert),
    Podman(podman::Podman),
    Snapshotter(Box<snapshotter::Snapshotter>),
    Status(status::Status),
    Why(why::Why),
    Cache(cache::Cache),
    Trace(trace::Trace),
    Recover(recover::Recover),
    Daemon(daemon::Daemon),
    Doctor(doctor::Doctor),
    Demo(demo::Demo),
    Completions(completions::Completions),
    Man(man::Man),
    #[command(hide = true)]
    Serve(serve::Serve),
    #[command(hide = true)]
    Keep(keep::Keep),
}

impl Command {
    /// The log filter when `$RUST_LOG` is not set. Commands print their own messages; servers have only the log.
    pub(crate) fn default_log(&self) -> &'static str {
        match self {
            Self::Serve(_) | Self::Keep(_) | Self::Daemon(_) | Self::Snapshotter(_) => "info",
            Self::Mount(mount) if mount.foreground => "warn",
            _ => "off",
        }
    }

    /// Whether the command handles SIGINT itself, because it must clean up or forward the signal to a container.
    pub(crate) fn answers_interrupts(&self) -> bool {
        matches!(
            self,
            Self::Run(_)
                | Self::Exec(_)
                | Self::Commit(_)
                | Self::Push(_)
                | Self::Record(_)
                | Self::Convert(_)
                | Self::Snapshotter(_)
                | Self::Daemon(_)
                | Self::Demo(_)
                | Self::Serve(_)
                | Self::Keep(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_subcommand_shows_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  tarpon "), "{} has no example", command.get_name());
        }
    }
}
