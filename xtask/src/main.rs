//! The tasks of this repository: check it, test it, build images for it, try it against faults, fuzz it, cut its power, run it under systemd, for hours and in virtual machines, measure it, release it.
//!
//! `cargo xtask --help` lists the tasks; each has its own module.

// A task prints for its user.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tarpon_harness::link;

mod bench;
mod crash;
mod cri;
mod debian;
mod document;
mod faults;
mod fuzz;
mod images;
mod initramfs;
mod kernel;
mod machines;
mod random;
mod release;
mod sample_image;
mod soak;
mod systemd;
mod test;
mod tidy;
mod virtiofs;
mod vm;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of this repository")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check the rules of CONTRIBUTING.md and name each line that breaks one
    Tidy,
    /// Check links and paths in the documents and build the book of docs/ into target/book
    Docs,
    /// Run every check and every test; as root, install the system packages that they need
    Test(test::Args),
    /// Build the images of fixtures/corpus into a local registry
    Images(images::Args),
    /// Try everything against faults of the network and the disk, with more seeds the longer it runs
    Faults(faults::Args),
    /// Run the fuzz targets of tests/fuzz
    Fuzz(fuzz::Args),
    /// Cut the power of a virtual machine that writes to a store, and check the store
    Crash(crash::Args),
    /// Kill, restart and upgrade tarpon under systemd while containers read
    Systemd(systemd::Args),
    /// Boot virtual machines with the kernels and distributions that users have, and test tarpon in them
    Machines(machines::Args),
    /// Boot virtual machines whose root is an image mounted on the host, and compare them with the host
    Virtiofs(virtiofs::Args),
    /// Run a command behind a slow network link
    Link(link::Args),
    /// Run containers for hours, with outages and kills, and report what grows
    Soak(soak::Args),
    /// Make the archive, the checksums and the signature of a release
    Release(release::Args),
    /// Measure the times that users wait
    Bench(bench::Args),
}

fn main() -> ExitCode {
    match run(Args::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Tidy => tidy::run(),
        Task::Docs => tidy::book::run(),
        Task::Test(args) => test::run(&args),
        Task::Images(args) => images::run(&args),
        Task::Faults(args) => faults::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Crash(args) => crash::run(&args),
        Task::Systemd(args) => systemd::run(&args),
        Task::Machines(args) => machines::run(&args),
        Task::Virtiofs(args) => virtiofs::run(&args),
        Task::Link(args) => link::run(&args),
        Task::Soak(args) => soak::run(&args),
        Task::Release(args) => release::run(&args),
        Task::Bench(args) => bench::run(&args),
    }
}
