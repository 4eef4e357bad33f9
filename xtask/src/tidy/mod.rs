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
            // No error: changes that arrive at the same time would each have to correct the other's number.
            rules::slack(&repository).iter().for_each(|slack| println!("please lower a number: {slack}"));
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
