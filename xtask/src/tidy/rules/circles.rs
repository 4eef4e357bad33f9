//! Files of a package do not import each other in a circle: each can be read after those that it uses.

use super::super::modules::{Modules, circles};
use super::super::problem::Problem;
use super::super::repository::Repository;

pub(super) fn none(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for manifest in &repository.manifests {
        let package = manifest.path.strip_suffix("/Cargo.toml").unwrap_or_default();
        let modules = Modules::new(&format!("{package}/src/"), repository.sources.iter());
        let uses = modules.uses();
        for circle in circles(&uses) {
            let next = uses[circle[0]].iter().find(|used| circle.contains(used)).copied().unwrap_or_default();
            let text = format!("please break this circle of {} files, which continues at {next}", circle.len());
            problems.push(Problem::new(circle[0], 1, text));
        }
    }
    problems
}
