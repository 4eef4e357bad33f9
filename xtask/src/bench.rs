//! Runs the benchmarks, which are a program of their own: it compiles only when something is measured.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, anyhow};
use tarpon_harness::paths;

/// The options of `cargo xtask bench`: those of the benchmarks, `--help` included.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// A benchmark and its options; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Replaces this process, so that signals and the exit code are those of the benchmark.
pub(crate) fn run(args: &Args) -> Result<()> {
    let error = command().args(&args.arguments).exec();
    Err(anyhow!("cannot start cargo: {error}"))
}

/// A command that runs the benchmarks with the arguments that are added to it.
pub(crate) fn command() -> Command {
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet", "--package", "tarpon-bench", "--manifest-path"]);
    command.arg(paths::root().join("Cargo.toml")).arg("--");
    command
}
