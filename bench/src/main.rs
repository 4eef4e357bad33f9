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
mod papers;
mod podman;
mod report;
mod repository;
mod runs;
mod scale;
mod service;
mod sha256;
mod simulate;
mod start;
mod stats;
mod steady;
mod store;
mod together;
mod trees;
mod userns;
mod warm;
mod wire;

#[derive(Parser)]
#[command(name = "xtask bench", bin_name = "xtask bench", about = "Measure the times that users wait")]
struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Measure the time from an empty store to a ready container, over a slow link
    Start(start::Args),
    /// Repeat experiments of papers about container images, and show their figures beside the paper's
    Papers(papers::Args),
    /// Count the instructions of the hot functions and compare them with benches/instructions.json
    Instructions(instructions::Args),
    /// Render the results as a page with charts
    Report(report::Args),
    /// Measure the cost of more layers, files, bytes, mounts, containers and concurrent starts
    Scale(scale::Args),
    /// Simulate starts on up to 10,000 hosts at once, with the real planner and a modelled network
    Simulate(simulate::Args),
    /// Measure reads of a complete local image, compared with plain overlayfs
    Steady(steady::Args),
    /// Run a command behind a slow link; a benchmark starts itself with it
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
        Bench::Papers(args) => papers::run(args),
        Bench::Report(args) => report::run(args),
        Bench::Instructions(args) => instructions::run(args),
        Bench::Scale(args) => scale::run(args),
        Bench::Simulate(args) => simulate::run(args),
        Bench::Steady(args) => steady::run(args),
        Bench::Link(args) => link::run(args),
    }
}
