//! `tarpon exec`: runs another process in a running container.

use std::process::ExitCode;

use clap::Args;
use tarpon_engine::{ContainerName, ExecRequest, Signals};

use super::run::{ProcessArgs, check_terminal, failure, not_run, subject};
use crate::commands::session::{Session, command_runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tarpon exec web cat /etc/hosts
  tarpon exec -it web sh

The exit code is that of the command, or 125, 126 or 127 as for `tarpon run`.";

/// Run a command in a running container
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = "tarpon exec [OPTIONS] <NAME> [--] <COMMAND>...")]
pub(crate) struct Exec {
    /// Connect standard input
    #[arg(short, long)]
    interactive: bool,
    /// Allocate a pseudo-terminal
    #[arg(short, long)]
    tty: bool,
    #[command(flatten)]
    process: ProcessArgs,
    /// Container, by name or unique prefix, and command
    #[arg(value_names = ["NAME", "COMMAND"], required = true, num_args = 2..)]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

impl Exec {
    pub(crate) fn run(&self, global: &Global) -> Result<ExitCode> {
        let (name, command) = subject("exec", &self.words)?;
        let name: ContainerName = name.parse().map_err(|error: String| Failure::new(Exit::Usage, error))?;
        self.execute(global, &name, command).map(ExitCode::from).map_err(not_run)
    }

    fn execute(&self, global: &Global, name: &ContainerName, command: Vec<String>) -> Result<u8> {
        let doing = || format!("cannot run a command in {name}");
        let session = Session::open(global)?;
        check_terminal(self.tty, doing)?;
        let name = &session.engine().container_named(name).doing(doing)?;
        let request = ExecRequest {
            command,
            env: self.process.variables()?,
            directory: self.process.workdir.clone(),
            user: self.process.user.clone(),
            terminal: self.tty,
            input: self.interactive,
        };
        command_runtime()?.block_on(async {
            let mut signals = Signals::listen().doing(doing)?;
            let ended = session.engine().exec(name, &request, &mut signals).await;
            ended.map_err(|failed| failure(doing(), failed))
        })
    }
}
