//! Measures the times that users wait. Each benchmark is a separate task, prints a table and writes every run to a file.

use anyhow::Result;

mod behind;
mod chart;
pub(crate) mod instructions;
mod machine;
mod podman;
mod report;
mod runs;
mod scale;
mod start;
mod stats;
mod steady;
mod trees;
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
    /// How many instructions the hot functions take, and whether they have become more
    Instructions(instructions::Args),
    /// What the benchmarks found, as a page with pictures
    Report(report::Args),
    /// What it costs when there is more of it: layers, files, bytes, mounts, containers, starts at once
    Scale(scale::Args),
    /// What reading an image costs after the start, compared with plain overlayfs
    Steady(steady::Args),
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.bench {
        Bench::Start(args) => start::run(args),
        Bench::Report(args) => report::run(args),
        Bench::Instructions(args) => instructions::run(args),
        Bench::Scale(args) => scale::run(args),
        Bench::Steady(args) => steady::run(args),
    }
}
