//! Counts the instructions of the hot functions with Callgrind, and reports increases.
//!
//! Counts do not depend on the load of the machine, so regressions of a few percent are visible. They depend on the compiler, so the
//! stored counts (`benches/instructions.json`) belong to one compiler and are compared with no other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{paths, process};

/// Ratio above which an increase is a regression.
const ALLOWED: f64 = 1.05;

/// How often a case that seems to regress is counted: some runs of the same program take a few percent more because of a different memory
/// layout. The minimum counts.
const COUNTED_AGAIN: usize = 5;

/// The function that is counted.
const COUNTED: &str = "*tarpon_counted*";

/// The options of `cargo xtask bench instructions`.
#[derive(clap::Args)]
pub struct Args {
    /// Store the new counts as the reference
    #[arg(long)]
    update: bool,
    /// The functions to count [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "update")]
    only: Vec<String>,
}

/// The stored counts.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// The environment that counts depend on: the compiler, the processor, Valgrind.
    with: Vec<String>,
    instructions: BTreeMap<String, u64>,
}

/// The result of a comparison.
pub enum Outcome {
    /// No function takes more than before.
    Same,
    /// Nothing to compare with, or no way to count, with the reason.
    Skipped(String),
}

/// Counts and compares; an error if nothing could be compared.
pub fn run(args: &Args) -> Result<()> {
    match gate(args.update, &args.only)? {
        Outcome::Same => Ok(()),
        Outcome::Skipped(why) => bail!("nothing was compared: {why}"),
    }
}

/// Counts and compares. The error names each function that takes more, with both numbers, and each that is on one side only.
pub fn gate(update: bool, only: &[String]) -> Result<Outcome> {
    if process::find("valgrind").is_none() {
        return Ok(Outcome::Skipped("valgrind is not installed".to_owned()));
    }
    let with = with()?;
    let file = paths::root().join("benches/instructions.json");
    let kept: Option<Kept> = match fs::read(&file) {
        Ok(bytes) => Some(serde_json::from_slice(&bytes).with_context(|| format!("{} is broken", file.display()))?),
        Err(_) => None,
    };
    if !update && let Some(why) = unlike(kept.as_ref(), &with) {
        return Ok(Outcome::Skipped(why));
    }
    let counter = build()?;
    let names = names(&counter)?;
    if let Some(unknown) = only.iter().find(|name| !names.contains(name)) {
        bail!("no case {unknown}: there are {}", names.join(", "));
    }
    let wanted = |name: &&String| only.is_empty() || only.contains(name);
    let mut counts = BTreeMap::new();
    for name in names.iter().filter(wanted) {
        let before = kept.as_ref().filter(|_| !update).and_then(|kept| kept.instructions.get(name)).copied();
        let count = least(before, || count(&counter, name)).with_context(|| format!("cannot count {name}"))?;
        counts.insert(name.clone(), count);
    }
    if update {
        let kept = Kept { with, instructions: counts };
        fs::write(&file, format!("{}\n", serde_json::to_string_pretty(&kept)?))?;
        println!("kept in {}", file.display());
        return Ok(Outcome::Same);
    }
    let before = kept.map(|kept| kept.instructions).unwrap_or_default();
    println!("{}", table(&before, &counts));
    let mut wrong = regressions(&before, &counts);
    wrong.extend(unrecorded(&before, &counts));
    wrong.extend(before.keys().filter(|name| !names.contains(name)).map(|name| gone(name)));
    if wrong.is_empty() { Ok(Outcome::Same) } else { bail!("{}", wrong.join("\n")) }
}

/// The environment that counts depend on.
fn with() -> Result<Vec<String>> {
    let output_of = |program: &str, argument: &str| -> Result<String> {
        let output = Command::new(program).arg(argument).output().with_context(|| format!("cannot run {program}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let library = output_of("getconf", "GNU_LIBC_VERSION")?;
    Ok(vec![output_of("rustc", "--version")?, output_of("valgrind", "--version")?, library, processor()])
}

/// The processor features by which libraries choose their functions, as far as Valgrind supports them.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    let has = |flag: &&&str| flags.split_whitespace().any(|known| known == **flag);
    let features = ["sse4_2", "pclmulqdq", "avx", "avx2", "bmi1", "bmi2", "sha_ni"];
    [std::env::consts::ARCH].iter().chain(features.iter().filter(has)).copied().collect::<Vec<_>>().join(" ")
}

/// Why the stored counts cannot be compared.
fn unlike(kept: Option<&Kept>, with: &[String]) -> Option<String> {
    match kept {
        None => Some("there are no counts: make them with --update".to_owned()),
        Some(kept) if kept.with != with => {
            Some(format!("the counts are of {}, and this is {}: --update", kept.with.join(", "), with.join(", ")))
        }
        Some(_) => None,
    }
}

/// Builds the program that runs one case.
fn build() -> Result<PathBuf> {
    let mut build = Command::new("cargo");
    build.args([
        "build",
        "--quiet",
        "--locked",
        "--profile",
        "counted",
        "--package",
        "tarpon-benches",
        "--bin",
        "tarpon-count",
    ]);
    process::check(build.current_dir(paths::root()))?;
    Ok(paths::target().join("counted/tarpon-count"))
}

fn names(counter: &Path) -> Result<Vec<String>> {
    let output = Command::new(counter).arg("--list").output().context("cannot list the cases")?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The minimum of several counts; stops early at one within the limit.
fn least(before: Option<u64>, count: impl Fn() -> Result<u64>) -> Result<u64> {
    let mut least = count()?;
    for _ in 1..COUNTED_AGAIN {
        if before.is_some_and(|before| !is_more(before, least)) {
            break;
        }
        least = least.min(count()?);
    }
    Ok(least)
}

fn is_more(before: u64, now: u64) -> bool {
    now as f64 > before as f64 * ALLOWED
}

/// Runs one case in Callgrind.
fn count(counter: &Path, name: &str) -> Result<u64> {
    let out = paths::benchmarks().join(format!("callgrind.{name}"));
    fs::create_dir_all(paths::benchmarks())?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--collect-atstart=no", &format!("--toggle-collect={COUNTED}")]);
    command.arg(format!("--callgrind-out-file={}", out.display())).arg(counter).arg(name);
    let output = command.stdin(Stdio::null()).output().context("cannot start valgrind")?;
    if !output.status.success() {
        bail!("valgrind ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let file = fs::read_to_string(&out).with_context(|| format!("cannot read {}", out.display()))?;
    total(&file).with_context(|| format!("{COUNTED} was not seen: {}", out.display()))
}

/// The total in a Callgrind file.
fn total(file: &str) -> Option<u64> {
    let line =
        file.lines().find_map(|line| line.strip_prefix("totals: ").or_else(|| line.strip_prefix("summary: ")))?;
    line.trim().parse().ok().filter(|count| *count > 0)
}

fn table(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> String {
    let mut text = String::from("| function | instructions before | now | ratio |\n|---|--:|--:|--:|\n");
    for (name, now) in now {
        let (was, ratio) = match before.get(name) {
            Some(before) => (before.to_string(), format!("{:.3}", *now as f64 / *before as f64)),
            None => ("new".to_owned(), String::new()),
        };
        text.push_str(&format!("| {name} | {was} | {now} | {ratio} |\n"));
    }
    text
}

/// Functions that take more than before, beyond the limit.
fn regressions(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Vec<String> {
    let pairs = now.iter().filter_map(|(name, now)| Some((name, *before.get(name)?, *now)));
    pairs
        .filter(|(_, before, now)| is_more(*before, *now))
        .map(|(name, before, now)| {
            let more = (now as f64 / before as f64 - 1.0) * 100.0;
            format!("{name} takes {now} instructions, {more:.1} % more than the {before} before; if that is right: cargo xtask bench instructions --update")
        })
        .collect()
}

/// Functions without a stored count: any regression of these would go unnoticed.
fn unrecorded(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Vec<String> {
    let new = now.keys().filter(|name| !before.contains_key(*name));
    new.map(|name| format!("{name} has no recorded count; run with --update")).collect()
}

fn gone(name: &str) -> String {
    format!("{name} has a recorded count, and there is no such case any more; run with --update")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn more_than_five_percent_more_is_a_regression_and_both_numbers_are_printed() {
        let before = counts(&[("merge", 1000), ("write", 1000), ("gone", 1)]);
        let found = regressions(&before, &counts(&[("merge", 1051), ("write", 1050), ("new", 5)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("merge takes 1051 instructions, 5.1 % more than the 1000"), "{}", found[0]);
    }

    #[test]
    fn a_case_without_a_recorded_count_is_named() {
        let found = unrecorded(&counts(&[("merge", 1)]), &counts(&[("merge", 1), ("new", 5)]));
        assert_eq!(found, ["new has no recorded count; run with --update"]);
    }

    #[test]
    fn what_seems_to_be_more_is_counted_again_and_what_is_not_is_counted_once() {
        let counting = |all: &'static [u64]| {
            let mut left = all.iter().copied();
            let next = std::cell::RefCell::new(move || Ok(left.next().expect("no more is counted")));
            move || (next.borrow_mut())()
        };
        assert_eq!(least(Some(1000), counting(&[1050])).unwrap(), 1050);
        assert_eq!(least(Some(1000), counting(&[1200, 1001])).unwrap(), 1001);
        assert_eq!(least(Some(1000), counting(&[1200, 1100, 1300, 1100, 1100])).unwrap(), 1100);
        assert_eq!(least(None, counting(&[5, 4, 3, 4, 5])).unwrap(), 3);
    }

    #[test]
    fn counts_of_another_compiler_are_not_compared() {
        let with = |compiler: &str| vec![compiler.to_owned()];
        let kept = Kept { with: with("rustc 1.0"), instructions: BTreeMap::new() };
        assert_eq!(unlike(Some(&kept), &with("rustc 1.0")), None);
        assert!(unlike(Some(&kept), &with("rustc 2.0")).unwrap().contains("rustc 1.0"));
        assert!(unlike(None, &with("rustc 2.0")).is_some());
    }

    #[test]
    fn the_total_is_found_and_nothing_is_no_total() {
        assert_eq!(total("events: Ir\nfn=a\n1 5\n\ntotals: 1234\n"), Some(1234));
        assert_eq!((total("totals: 0\n"), total("")), (None, None));
    }
}
