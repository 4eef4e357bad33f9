//! The whole command line: subcommands and global options.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tarpon_engine::Hold;

use crate::commands::background::{Keep, MapIds, Serve, Worker};
use crate::commands::container::lifecycle::{Kill, Rm, Stop, Wait};
use crate::commands::container::run::not_run;
use crate::commands::container::{exec, logs, ps, run};
use crate::commands::namespace::{self, Need};
use crate::commands::packaging::{Completions, Man};
use crate::commands::{
    cache, commit, convert, daemon, demo, doctor, index, inspect, login, ls, mount, podman, prefetch, pull, push,
    record, recover, server, snapshotter, status, tier, trace, umount, unshare, why,
};
use crate::exit::{self, Exit};
use crate::failure::{Failure, Result};
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tarpon demo                                     run a demonstration; needs no registry and no root
  tarpon mount docker.io/library/alpine /mnt      mount an image from a registry
  ls /mnt && tarpon status && tarpon umount /mnt  use the mount, show its state, unmount it
  tarpon run --rm -it alpine sh                   run a container
  tarpon ls -l debian:12:/etc                     list files of an image without mounting it
  tarpon doctor                                   check what works on this machine

IMAGE is [docker://]NAME[:TAG|@DIGEST], oci:DIR[:TAG], oci-archive:FILE or docker-archive:FILE.";

/// Mount container images lazily, straight from the registry
#[derive(Debug, Parser)]
#[command(name = "tarpon", version, max_term_width = 100, after_help = EXAMPLES)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Enters the user namespace that the subcommand needs without root.
    pub(crate) fn enter_namespace(&mut self) -> Result<Option<Hold>> {
        namespace::enter(&mut self.global, &self.command.needs()).map_err(|failure| self.command.not_started(failure))
    }

    /// Runs the subcommand.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let global = &self.global;
        let done = match self.command {
            // These two exit with the code of their program.
            Command::Run(command) => return command.run(global),
            Command::Exec(command) => return command.run(global),
            Command::Mount(command) => command.run(global),
            Command::Umount(command) => command.run(global),
            Command::Login(command) => command.run(global),
            Command::Logout(command) => command.run(global),
            Command::Pull(command) => command.run(global),
            Command::Prefetch(command) => command.run(global),
            Command::Ls(command) => command.run(global),
            Command::Podman(command) => command.run(global),
            Command::Index(command) => command.run(global),
            Command::Record(command) => command.run(global),
            Command::Inspect(command) => command.run(global),
            Command::Convert(command) => command.run(global),
            Command::Snapshotter(command) => command.run(global),
            Command::Status(command) => command.run(global),
            Command::Why(command) => command.run(global),
            Command::Cache(command) => command.run(global),
            Command::Tier(command) => command.run(global),
            Command::Trace(command) => command.run(global),
            Command::Recover(command) => command.run(global),
            Command::Unshare(command) => command.run(global),
            Command::Server(command) => command.run(global),
            Command::Daemon(command) => command.run(global),
            Command::Doctor(command) => command.run(global),
            Command::Demo(command) => command.run(global),
            Command::Completions(command) => command.run(&mut visible()),
            Command::Man(command) => command.run(Cli::command()),
            Command::Ps(command) => command.run(global),
            Command::Logs(command) => command.run(global),
            Command::Wait(command) => command.run(global),
            Command::Stop(command) => command.run(global),
            Command::Kill(command) => command.run(global),
            Command::Rm(command) => command.run(global),
            Command::Commit(command) => command.run(global),
            Command::Push(command) => command.run(global),
            Command::Serve(command) => command.run(global),
            Command::Worker(command) => command.run(),
            Command::Keep(command) => command.run(global),
            Command::MapIds(command) => command.run(),
        };
        done.map(|()| Exit::Ok.into())
    }
}

/// The command line without its hidden subcommands, for completions.
fn visible() -> clap::Command {
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
    Wait(Wait),
    Stop(Stop),
    Kill(Kill),
    Rm(Rm),
    Commit(Box<commit::Commit>),
    Login(login::Login),
    Logout(login::Logout),
    Push(push::Push),
    Pull(pull::Pull),
    Prefetch(prefetch::Prefetch),
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
    Tier(tier::Tier),
    Trace(trace::Trace),
    Recover(recover::Recover),
    Unshare(unshare::Unshare),
    Server(server::Server),
    Daemon(daemon::Daemon),
    Doctor(doctor::Doctor),
    Demo(demo::Demo),
    Completions(Completions),
    Man(Man),
    #[command(hide = true)]
    Serve(Serve),
    #[command(hide = true)]
    Worker(Worker),
    #[command(hide = true)]
    Keep(Keep),
    #[command(hide = true)]
    MapIds(MapIds),
}

impl Command {
    /// The log filter when `$RUST_LOG` is not set. Commands print their own messages; servers have only the log.
    pub(crate) fn default_log(&self) -> &'static str {
        match self {
            Self::Serve(_) | Self::Worker(_) | Self::Keep(_) | Self::Daemon(_) | Self::Snapshotter(_) => "info",
            Self::Mount(mount) if mount.foreground => "warn",
            _ => "off",
        }
    }

    /// What the command needs of a user namespace without root.
    fn needs(&self) -> Need<'_> {
        match self {
            Self::Run(_) | Self::Record(_) | Self::Commit(_) | Self::Rm(_) | Self::Unshare(_) => Need::Any,
            Self::Mount(mount) if mount.is_writable() => Need::Any,
            Self::Ps(_) | Self::Exec(_) | Self::Logs(_) | Self::Wait(_) | Self::Stop(_) | Self::Kill(_) => {
                Need::Running
            }
            Self::Podman(podman) => Need::Podman { checks_driver: podman.sets_up() },
            Self::Umount(umount) => umount.first().map_or(Need::Nothing, Need::Mount),
            Self::Why(why) => Need::Mount(&why.mount),
            Self::Status(status) => status.mount.as_deref().map_or(Need::Nothing, Need::Mount),
            _ => Need::Nothing,
        }
    }

    /// The failure of the command before it began. Exit codes of `run` and `exec` are otherwise those of a program.
    fn not_started(&self, failure: Failure) -> Failure {
        match self {
            Self::Run(_) | Self::Exec(_) => not_run(failure),
            _ => failure,
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
                | Self::Worker(_)
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
    fn a_command_that_runs_a_program_exits_with_125_if_it_cannot_enter_a_namespace() {
        let exit = |arguments: &[&str], exit| {
            let cli = Cli::try_parse_from([&["tarpon"], arguments].concat()).expect("valid");
            cli.command.not_started(Failure::new(exit, "cannot enter a user namespace")).exit
        };
        for arguments in [&["run", "app"][..], &["exec", "web", "ls"]] {
            assert_eq!(exit(arguments, Exit::CannotMount), Exit::NotRun, "{arguments:?}");
            assert_eq!(exit(arguments, Exit::Store), Exit::NotRun, "{arguments:?}");
            assert_eq!(exit(arguments, Exit::Usage), Exit::Usage, "{arguments:?}");
        }
        assert_eq!(exit(&["rm", "web"], Exit::CannotMount), Exit::CannotMount);
    }

    #[test]
    fn every_subcommand_shows_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  tarpon "), "{} has no example", command.get_name());
        }
    }
}
