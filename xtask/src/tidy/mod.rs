//! The rules of the code base that no compiler checks.
//!
//! Each rule is a function from the repository to the lines that break it; `rules` lists them. A problem is reported
//! with its place and a way to fix it.

use std::fmt;

use anyhow::{Result, bail};

use tarpon_harness::paths;

pub(crate) mod book;
mod manifest;
mod repository;
mod rules;
mod source;

use repository::Repository;

/// A line that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Problem {
    path: String,
    line: usize,
    text: String,
}

impl Problem {
    fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.text)
    }
}

pub(crate) fn run() -> Result<()> {
    let repository = Repository::load(&paths::root())?;
    let problems = check(&repository);
    for problem in &problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => Ok(()),
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
