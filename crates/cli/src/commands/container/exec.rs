//! `tarpon exec`: another process in a container that runs.

use std::process::ExitCode;

use clap::Args;
use tarpon_engine::{ContainerName, ExecRequest, Signals};

use crate::cli::Global;
use crate::commands::run::{EnvArgs, check_terminal, failure, not_run};
use crate::commands::session::{Session, runtime};
use crate::failure::{Context, Result};

const EXAMPLES: &str = "\
Examples:
  tarpon exec web cat /etc/hosts
  tarpon exec -it web sh

The exit code is that of the command, or 125, 126 or 127 as with `tarpon run`.";

/// Run a command in a container that runs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Exec {
    /// Give it this standard input
    #[arg(short, long)]
    interactive: bool,
    /// Give it a terminal
    #[arg(short, long)]
    tty: bool,
    #[command(flatten)]
    env: EnvArgs,
    /// Run as this user of the image: USER[:GROUP], names or numbers
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Start in this directory
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// The container
    name: ContainerName,
    /// What to run
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

impl Exec {
    pub(crate) fn run(&self, global: &Global) -> Result<ExitCode> {
        self.execute(global).map(ExitCode::from).map_err(not_run)
    }

    fn execute(&self, global: &Global) -> Result<u8> {
        let doing = || format!("cannot run a command in {}", self.name);
        let session = Session::open(global)?;
        check_terminal(self.tty, doing)?;
        let request = ExecRequest {
            command: self.command.clone(),
            env: self.env.variables()?,
            directory: self.workdir.clone(),
            user: self.user.clone(),
            terminal: self.tty,
            input: self.interactive,
        };
        runtime()?.block_on(async {
            let mut signals = Signals::listen().doing(doing)?;
            let ended = session.engine().exec(&self.name, &request, &mut signals).await;
            ended.map_err(|failed| failure(doing(), failed))
        })
    }
}
