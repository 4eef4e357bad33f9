//! Fuzzing.
//!
//! The targets are the binaries of `tests/fuzz`, a package outside of the workspace because its libraries are built
//! with instrumentation. Seeds that are kept are in `fixtures/fuzz/TARGET`, and ordinary tests replay them; what a run
//! finds goes to the target folder, and a person decides what of it to keep.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{paths, process};

/// The options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The target to run; all of them, one after the other, when none is named
    target: Option<String>,
    /// How long each target runs
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let known = targets()?;
    let chosen = match &args.target {
        Some(name) if !known.contains(name) => bail!("no fuzz target is named {name}; there are {}", known.join(", ")),
        Some(name) => vec![name.clone()],
        None => known,
    };
    if process::find_in_cargo_home("cargo-fuzz").is_none() {
        process::check(Command::new("cargo").args(["install", "--locked", "cargo-fuzz"]))?;
    }
    for target in &chosen {
        println!("fuzzing {target} for {} s", args.seconds);
        fuzz(target, args.seconds)?;
    }
    Ok(())
}

fn folder() -> PathBuf {
    paths::root().join("tests/fuzz")
}

/// The names of the targets: one file each.
fn targets() -> Result<Vec<String>> {
    let folder = folder().join("fuzz_targets");
    let mut names = Vec::new();
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(names) };
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs") {
            names.extend(path.file_stem().map(|n| n.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

fn fuzz(target: &str, seconds: u32) -> Result<()> {
    let work = paths::target().join("fuzz");
    let (found, crashes) = (work.join("corpus").join(target), work.join("crashes"));
    fs::create_dir_all(&found)?;
    fs::create_dir_all(&crashes)?;
    let mut command = Command::new("cargo");
    command.args(["fuzz", "run", "--fuzz-dir"]).arg(folder()).arg(target).arg(&found);
    command.args(seeds(target).is_dir().then(|| seeds(target)));
    command.arg("--").arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/{target}-", crashes.display()));
    // Instrumentation is an unstable option of the compiler; this lets the stable one take it.
    command.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", &work);
    process::check(&mut command).with_context(|| format!("{target} failed; its input is in {}", crashes.display()))
}

fn seeds(target: &str) -> PathBuf {
    paths::root().join("fixtures/fuzz").join(target)
}
