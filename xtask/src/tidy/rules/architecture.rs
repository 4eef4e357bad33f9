//! ARCHITECTURE.md names exactly the crates that exist, and each crate describes itself.

use super::super::problem::Problem;
use super::super::repository::Repository;

const PAGE: &str = "ARCHITECTURE.md";

pub(super) fn documented(repository: &Repository) -> Vec<Problem> {
    let Some(page) = repository.file(PAGE) else {
        return vec![Problem::new(PAGE, 1, "there is no such page: please write it")];
    };
    let crates = repository.crates();
    let mut problems = Vec::new();
    for name in crates.iter().filter(|name| !mentions(&page.text).any(|m| m == **name)) {
        problems.push(Problem::new(PAGE, 1, format!("crates/{name} is not mentioned: please say what it does")));
    }
    for (number, line) in page.lines() {
        for name in mentions(line).filter(|name| !crates.contains(name)) {
            problems.push(Problem::new(PAGE, number, format!("there is no crates/{name}: please do not mention it")));
        }
    }
    problems
}

/// The names after `crates/`.
fn mentions(text: &str) -> impl Iterator<Item = &str> {
    let end = |c: char| !c.is_alphanumeric() && c != '-' && c != '_';
    text.split("crates/").skip(1).map(move |rest| rest.split(end).next().unwrap_or_default()).filter(|n| !n.is_empty())
}

pub(super) fn crate_headers(repository: &Repository) -> Vec<Problem> {
    let roots = repository.files.iter().filter(|f| {
        let part = f.path.strip_prefix("crates/").and_then(|p| p.split_once('/')).map(|(_, file)| file);
        matches!(part, Some("src/lib.rs" | "src/main.rs"))
    });
    let silent = roots.filter(|f| !f.text.lines().any(|line| line.starts_with("//!")));
    silent.map(|f| Problem::new(&f.path, 1, "please say in a `//!` header what this crate does")).collect()
}
