//! The rules of the code base that no compiler checks.
//!
//! Each rule is a function from the repository to the lines that break it; `rules` lists them. A problem is reported
//! with its place and a way to fix it.

use anyhow::{Result, bail};

use tarpon_harness::paths;

pub(crate) mod book;
mod manifest;
mod modules;
mod problem;
mod repository;
mod rules;
mod source;

use problem::Problem;
use repository::Repository;

pub(crate) fn run() -> Result<()> {
    let repository = Repository::load(&paths::root())?;
    let problems = check(&repository);
    for problem in &problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => {
            let (files, words) = rules::exempted();
            println!("no line breaks a rule; still allowed: {files} files in circles, {words} vague words");
            Ok(())
        }
        n => bail!("{n} lines break a rule"),
    }
}

/// All problems, ordered by place.
fn check(repository: &Repository) -> Vec<Problem> {
    let mut problems: Vec<_> = rules::ALL.iter().flat_map(|rule| rule(repository)).collect();
    problems.sort();
    problems.dedup();
    problems
}

#[cfg(test)]
mod tests;
