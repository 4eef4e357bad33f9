//! Measures what users wait for. Each benchmark is a task of its own, prints a table and writes every single run to a file.

use anyhow::Result;

mod behind;
mod machine;
mod podman;
mod runs;
mod start;
mod stats;
mod warm;
mod wire;

/// The options of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand)]
enum Bench {
    /// From nothing on this machine to a container that is ready, over a slow link
    Start(start::Args),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.bench {
        Bench::Start(args) => start::run(args),
    }
}
