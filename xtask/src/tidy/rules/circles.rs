//! Files of a package do not import each other in a circle: each can be read after those that it uses.

use super::super::modules::{Modules, circles};
use super::super::problem::Problem;
use super::super::repository::Repository;

/// How many files of a package may still be part of a circle. Only ever lower a number.
const ALLOWED: &[(&str, usize)] = &[("bench", 24)];

/// The packages of the table that have fewer files in circles than it allows.
pub(super) fn slack(repository: &Repository) -> Vec<String> {
    let counted = ALLOWED.iter().map(|(package, allowed)| {
        let modules = Modules::new(&format!("{package}/src/"), repository.sources.iter());
        (package, allowed, circles(&modules.uses()).iter().map(Vec::len).sum())
    });
    let slack = counted.filter(|(_, allowed, files): &(_, &usize, usize)| files < *allowed);
    slack.map(|(package, allowed, files)| format!("{}: {package} has {files} instead of {allowed}", file!())).collect()
}

pub(super) fn none_new(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for manifest in &repository.manifests {
        let package = manifest.path.strip_suffix("/Cargo.toml").unwrap_or_default();
        let modules = Modules::new(&format!("{package}/src/"), repository.sources.iter());
        let uses = modules.uses();
        let circles = circles(&uses);
        let files: usize = circles.iter().map(Vec::len).sum();
        let allowed = ALLOWED.iter().find(|(name, _)| *name == package).map_or(0, |(_, allowed)| *allowed);
        if files <= allowed {
            continue;
        }
        for circle in circles {
            let back = uses[circle[0]].iter().find(|used| circle.contains(used)).copied().unwrap_or_default();
            let text = format!(
                "{files} files of {package} import each other in circles, and {} allows {allowed}: please break this circle of {} \
                 files, which goes on at {back}",
                file!(),
                circle.len()
            );
            problems.push(Problem::new(circle[0], 1, text));
        }
    }
    problems
}
