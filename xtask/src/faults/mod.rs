//! Runs the suites of faults: each one once, and those with random cases again, with other seeds, until the time is over.
//!
//! The seeds of all runs follow from the first: the same seed repeats the same cases, as many as the time allows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tarpon_harness::{paths, process};

use crate::test::cargo::{self, Program};

mod suites;
mod tally;

use suites::{Cases, SUITES, Suite};
use tally::Tally;

/// The options of `cargo xtask faults`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long to run suites with random cases again, after each suite ran once
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Determines all random cases
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Time of a suite in a round: some hundred cases of the slowest.
const SLICE_SECONDS: u64 = 20;
/// Seeds of a round: more than any suite uses in its slice.
const ROUND_SEEDS: u64 = 1 << 20;
/// Lines of a failed run that are shown.
const FAILURE_LINES: usize = 40;

pub(crate) fn run(args: &Args) -> Result<()> {
    let programs = build()?;
    let logs = paths::target().join("faults");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    println!("seed {}; the output of each suite is in {}", args.seed, logs.display());
    let mut tallies: Vec<(&str, Tally)> = SUITES.iter().map(|suite| (suite.name, Tally::default())).collect();
    for (suite, (_, tally)) in SUITES.iter().zip(&mut tallies) {
        tally.add(&attempt(suite, &programs, &logs, args.seed, 0)?);
    }
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let mut seed = args.seed;
    while Instant::now() < until {
        seed = seed.wrapping_add(ROUND_SEEDS);
        for (suite, (_, tally)) in SUITES.iter().zip(&mut tallies).filter(|(suite, _)| suite.cases != Cases::Listed) {
            let left = until.saturating_duration_since(Instant::now()).as_secs();
            if left > 0 {
                tally.add(&attempt(suite, &programs, &logs, seed, left.min(SLICE_SECONDS))?);
            }
        }
    }
    print!("\n{}", tally::table(&tallies));
    let failed: Vec<&str> = tallies.iter().filter(|(_, tally)| tally.failures > 0).map(|(name, _)| *name).collect();
    if !failed.is_empty() {
        bail!("{} of {} suites failed: {}", failed.len(), SUITES.len(), failed.join(", "));
    }
    Ok(())
}

/// Builds the test programs of all suites.
fn build() -> Result<Vec<Program>> {
    let mut command = Command::new("cargo");
    command.arg("test").current_dir(paths::root());
    for suite in SUITES {
        command.args(["-p", &format!("tarpon-{}", suite.package), "--test", suite.program]);
    }
    cargo::programs_of(&mut command)
}

/// Runs a suite from a seed, for this many seconds if it has cases without end; otherwise once.
fn attempt(suite: &Suite, programs: &[Program], logs: &Path, seed: u64, seconds: u64) -> Result<Tally> {
    let name = suite.program_name();
    let program = programs.iter().find(|program| program.name == name);
    let program = program.with_context(|| format!("cargo built no {name}"))?;
    let environment = suite.environment(seed, seconds);
    let mut command = Command::new(&program.executable);
    command.arg("--show-output").current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    command.env("INSTA_UPDATE", "no").envs(environment.iter().cloned());
    let (log, began) = (logs.join(name.replace('/', "-")).with_extension("log"), Instant::now());
    let output = run_logged(&mut command, &log)?;
    let tally = Tally::read(&output.text, output.is_success, began.elapsed());
    let Tally { cases, failures, took } = &tally;
    println!("{}, seed {seed}: {cases} cases, {failures} failures, {:.1} s", suite.name, took.as_secs_f64());
    if *failures > 0 {
        let lines: Vec<&str> = output.text.lines().filter(|line| !line.is_empty()).collect();
        println!("{}", lines[lines.len().saturating_sub(FAILURE_LINES)..].join("\n"));
        // A seed repeats its cases, whatever time the others took.
        let variables = environment.iter().filter(|(name, _)| *name != "SECONDS");
        let variables: Vec<String> = variables.map(|(name, value)| format!("{name}={value}")).collect();
        let variables = variables.join(" ");
        println!("again: {variables} cargo test -p tarpon-{} --test {}", suite.package, suite.program);
        let kept = log.with_extension(format!("failed-{seed}.log"));
        fs::copy(&log, &kept).with_context(|| format!("cannot write {}", kept.display()))?;
    }
    Ok(tally)
}

/// What a program printed.
struct Output {
    text: String,
    is_success: bool,
}

/// Runs a program with its output in `log`.
fn run_logged(command: &mut Command, log: &PathBuf) -> Result<Output> {
    let file = fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let status = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).status();
    let status = status.with_context(|| format!("cannot start {}", process::name(command)))?;
    let text = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    Ok(Output { text: String::from_utf8_lossy(&text).into_owned(), is_success: status.success() })
}
