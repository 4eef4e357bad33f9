//! The benchmarks of whole systems: they measure the times that users wait.
//!
//! Each benchmark prints a table and writes every run to a file. `cargo xtask bench` runs this program.

// A benchmark prints for its user.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tarpon_harness::{instructions, link};

mod behind;
mod chart;
mod link_end;
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

#[derive(Parser)]
#[command(name = "xtask bench", bin_name = "xtask bench", about = "Measure what users wait for")]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
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
    /// Runs a command behind a slow link: how a benchmark starts itself again
    #[command(hide = true)]
    Link(link::Args),
}

fn main() -> ExitCode {
    match run(&Args::parse().bench) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(bench: &Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Start(args) => start::run(args),
        Bench::Report(args) => report::run(args),
        Bench::Instructions(args) => instructions::run(args),
        Bench::Scale(args) => scale::run(args),
        Bench::Steady(args) => steady::run(args),
        Bench::Link(args) => link::run(args),
    }
}
