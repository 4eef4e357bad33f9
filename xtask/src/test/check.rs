//! Checks that run no test program, and their results.

use std::process::Command;

use anyhow::Result;
use tarpon_harness::{paths, process};

use super::count::Count;

/// The checks that could not run, with reasons: repeated at the end, before the line with the counts.
pub(super) type Skipped = Vec<String>;

/// Runs one check, which counts as one test.
pub(super) fn check(name: &str, check: impl FnOnce() -> Result<()>) -> Count {
    println!("== {name}");
    match check() {
        Ok(()) => Count::passed(),
        Err(error) => {
            println!("{name} failed: {error:#}");
            Count::failed()
        }
    }
}

pub(super) fn skip(skipped: &mut Skipped, name: &str, why: &str) -> Count {
    println!("== {name}: skipped, {why}");
    skipped.push(format!("{name}: {why}"));
    Count::skipped()
}

pub(super) fn cargo<'a>(args: &'a [&'a str]) -> impl FnOnce() -> Result<()> + 'a {
    move || process::check(Command::new("cargo").args(args).current_dir(paths::root()))
}
