//! The `tarpon` command: parses the command line, calls the engine and prints the result.
//!
//! One file per subcommand under `commands/` holds its arguments, its help and its code. All output goes through
//! `output/`. Image logic belongs in the engine, not here.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "the comments on arguments are their --help: [NAME] is an option there"
)]

mod alternatives;
mod cli;
mod commands;
mod exit;
mod failure;
mod global;
mod line;
mod logging;
mod output;
mod signals;
mod size;
mod terminal;
mod usage;

use std::process::ExitCode;

use clap::Parser;

/// That of musl has one lock for all threads.
#[cfg(all(target_env = "musl", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error),
    };
    logging::start(cli.command.default_log());
    match run(cli) {
        Ok(code) => code,
        Err(failure) => {
            output::error(&failure);
            failure.exit.into()
        }
    }
}

fn run(mut cli: cli::Cli) -> failure::Result<ExitCode> {
    // Before the first thread.
    let _namespace = cli.enter_namespace()?;
    if !cli.command.answers_interrupts() {
        signals::end_on_interrupt();
    }
    cli.run()
}
