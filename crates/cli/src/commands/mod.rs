//! The subcommands, and their common options and runtime.

pub(crate) mod cache;
pub(crate) mod commit;
pub(crate) mod completions;
pub(crate) mod container;
pub(crate) mod convert;
mod creds;
pub(crate) mod daemon;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod image;
pub(crate) mod index;
pub(crate) mod inspect;
pub(crate) mod ls;
pub(crate) mod man;
mod mode;
pub(crate) mod mount;
pub(crate) mod podman;
pub(crate) mod pull;
pub(crate) mod push;
pub(crate) mod record;
pub(crate) mod recover;
pub(crate) mod run;
mod scrub;
pub(crate) mod serve;
mod session;
pub(crate) mod snapshotter;
pub(crate) mod status;
mod stop;
pub(crate) mod trace;
pub(crate) mod umount;
pub(crate) mod why;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::exit::Exit;
use crate::failure::Result;

/// Runs the subcommand.
pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    let global = &cli.global;
    let done = match cli.command {
        // The exit code of these two is that of their program.
        Command::Run(command) => return command.run(global),
        Command::Exec(command) => return command.run(global),
        Command::Mount(command) => command.run(global),
        Command::Umount(command) => command.run(global),
        Command::Pull(command) => command.run(global),
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
        Command::Trace(command) => command.run(global),
        Command::Recover(command) => command.run(global),
        Command::Daemon(command) => command.run(global),
        Command::Doctor(command) => command.run(global),
        Command::Demo(command) => command.run(global),
        Command::Completions(command) => command.run(),
        Command::Man(command) => command.run(),
        Command::Ps(command) => command.run(global),
        Command::Logs(command) => command.run(global),
        Command::Wait(command) => command.run(global),
        Command::Stop(command) => command.run(global),
        Command::Kill(command) => command.run(global),
        Command::Rm(command) => command.run(global),
        Command::Commit(command) => command.run(global),
        Command::Push(command) => command.run(global),
        Command::Serve(command) => command.run(global),
        Command::Keep(command) => command.run(global),
    };
    done.map(|()| Exit::Ok.into())
}
