//! Runs the fuzz targets.
//!
//! The targets are the binaries of `tests/fuzz`, a package outside of the workspace because its libraries are built
//! with instrumentation. Committed seeds are in `fixtures/fuzz/TARGET`, and ordinary tests replay them; findings of a
//! run go to the target folder, and a developer decides which to keep.
//!
//! Every target runs, even after one that failed; a table at the end sums up.

mod outcome;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};

use outcome::Outcome;
use tarpon_harness::{paths, process};

/// Seconds that one input may take: on an idle machine all take less, and a busy machine must not cause findings.
const INPUT_SECONDS: u32 = 60;

/// The options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The targets to run [default: all]
    targets: Vec<String>,
    /// Duration of each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Number of targets that run at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: u16,
    /// Priority of the builds and runs: from 0 (normal) to 19 (lowest)
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=19))]
    nice: u8,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let known = targets()?;
    if let Some(name) = args.targets.iter().find(|name| !known.contains(name)) {
        bail!("no fuzz target is named {name}; there are {}", known.join(", "));
    }
    let chosen = if args.targets.is_empty() { known } else { args.targets.clone() };
    if process::find_in_cargo_home("cargo-fuzz").is_none() {
        process::check(Command::new("cargo").args(["install", "--locked", "cargo-fuzz"]))?;
    }
    // Built once for all targets: concurrent builds would wait for each other.
    let mut build = cargo_fuzz("build", args.nice);
    process::check(build.args(chosen.first().filter(|_| chosen.len() == 1)))?;
    let outcomes = fuzz_all(&chosen, args)?;
    print!("\n{}", outcome::table(&outcomes));
    let failed: Vec<&str> = outcomes.iter().filter(|it| it.has_failed()).map(|it| it.target.as_str()).collect();
    if !failed.is_empty() {
        bail!("{} of {} targets failed: {}", failed.len(), outcomes.len(), failed.join(", "));
    }
    Ok(())
}

/// Runs the targets, several at a time, and returns their outcomes in order.
fn fuzz_all(targets: &[String], args: &Args) -> Result<Vec<Outcome>> {
    let (waiting, done) = (Mutex::new(targets.iter().enumerate()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let work = || {
            loop {
                let next = waiting.lock().ok().and_then(|mut waiting| waiting.next());
                let Some((number, target)) = next else { return };
                println!("{target}: fuzzing for {} s", args.seconds);
                let outcome = fuzz(target, args);
                if let Ok(outcome) = &outcome {
                    println!("{outcome}");
                }
                if let Ok(mut done) = done.lock() {
                    done.push((number, outcome));
                }
            }
        };
        (0..args.jobs).for_each(|_| drop(scope.spawn(work)));
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

fn folder() -> PathBuf {
    paths::root().join("tests/fuzz")
}

/// Folder of builds, corpora, logs and findings.
fn work() -> PathBuf {
    paths::target().join("fuzz")
}

/// The names of the targets, one per file.
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

/// `cargo fuzz VERB`, for the package of the targets.
fn cargo_fuzz(verb: &str, nice: u8) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", &nice.to_string(), "cargo", "fuzz", verb, "--fuzz-dir"]).arg(folder());
    // Instrumentation is an unstable compiler option; this makes the stable compiler accept it.
    command.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", work());
    command.env("LSAN_OPTIONS", format!("suppressions={}", folder().join("leaks.txt").display()));
    command
}

fn fuzz(target: &str, args: &Args) -> Result<Outcome> {
    let work = work();
    let (found, findings, logs) =
        (work.join("corpus").join(target), work.join("crashes").join(target), work.join("logs"));
    for folder in [&found, &findings, &logs] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let before = names(&findings)?;
    let path = logs.join(format!("{target}.log"));
    let log = fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = cargo_fuzz("run", args.nice);
    command.arg(target).arg(&found).args(seeds(target).is_dir().then(|| seeds(target)));
    command.arg("--").arg("-print_final_stats=1").arg(format!("-max_total_time={}", args.seconds));
    command.arg(format!("-timeout={INPUT_SECONDS}")).arg(format!("-artifact_prefix={}/", findings.display()));
    let status = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).status();
    let status = status.with_context(|| format!("cannot start {}", process::name(&command)))?;
    let output = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut found = names(&findings)?;
    found.retain(|name| !before.contains(name));
    let findings = found.iter().map(|name| findings.join(name)).collect();
    Ok(Outcome::read(target, &String::from_utf8_lossy(&output), status.success(), findings, path))
}

fn names(folder: &PathBuf) -> Result<Vec<std::ffi::OsString>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut names: Vec<_> = entries.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

fn seeds(target: &str) -> PathBuf {
    paths::root().join("fixtures/fuzz").join(target)
}
