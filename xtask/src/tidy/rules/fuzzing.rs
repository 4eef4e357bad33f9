//! Every function that can be fuzzed has a target and seeds.

use super::super::problem::Problem;
use super::super::repository::Repository;

const FUNCTIONS: &str = "crates/testkit/src/fuzz/";

pub(super) fn complete(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for source in &repository.sources {
        let Some(name) = source.path.strip_prefix(FUNCTIONS).and_then(|file| file.strip_suffix(".rs")) else {
            continue;
        };
        if name == "mod" || name.contains('/') {
            continue;
        }
        let target = format!("tests/fuzz/fuzz_targets/{name}.rs");
        if repository.file(&target).is_none() {
            problems.push(Problem::new(&source.path, 1, format!("please wrap it in {target}, for cargo-fuzz")));
        }
        let seeds = format!("fixtures/fuzz/{name}/");
        let paths = repository.files.iter().map(|f| &f.path).chain(&repository.binaries);
        if !paths.into_iter().any(|path| path.starts_with(&seeds)) {
            problems.push(Problem::new(&source.path, 1, format!("please put seeds into {seeds}")));
        }
    }
    problems
}
