//! `unsafe` occurs only in the modules of a short list, each with a reason.

use super::super::problem::Problem;
use super::super::repository::Repository;
use super::purity::PURE;

/// One module per line: its path, a blank, the reason.
const LIST: &str = "xtask/unsafe-modules.txt";

pub(super) fn listed(repository: &Repository) -> Vec<Problem> {
    let list = read_list(repository);
    let mut problems = Vec::new();
    for source in &repository.sources {
        let Some(first) = source.words("unsafe").next() else { continue };
        let line = source.line_of(first);
        if PURE.iter().any(|name| source.path.starts_with(&format!("crates/{name}/"))) {
            problems.push(Problem::new(&source.path, line, "this crate holds no unsafe code: please do without"));
        } else if !list.iter().any(|(_, path, _)| *path == source.path) {
            problems.push(Problem::new(&source.path, line, format!("please do without unsafe, or say why in {LIST}")));
        }
    }
    for (line, path, reason) in list {
        let source = repository.sources.iter().find(|s| s.path == path);
        if source.is_none_or(|s| s.words("unsafe").next().is_none()) {
            problems.push(Problem::new(LIST, line, format!("{path} holds no unsafe code: please take it off")));
        }
        if reason.is_empty() {
            problems.push(Problem::new(LIST, line, format!("please give the reason for {path}")));
        }
    }
    problems
}

fn read_list(repository: &Repository) -> Vec<(usize, &str, &str)> {
    let Some(file) = repository.file(LIST) else { return Vec::new() };
    let lines = file.lines().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            let (path, reason) = line.split_once(' ').unwrap_or((line, ""));
            (number, path, reason.trim())
        })
        .collect()
}
