//! The rules, one module per kind.

use super::problem::Problem;
use super::repository::Repository;

mod architecture;
mod circles;
mod fuzzing;
mod language;
mod layering;
mod purity;
mod size;
mod unsafe_code;
mod words;

/// A rule: returns the lines that break it.
type Rule = fn(&Repository) -> Vec<Problem>;

/// The numbers in the tables of exemptions that can be lowered.
pub(super) fn slack(repository: &Repository) -> Vec<String> {
    language::slack(repository)
}

pub(super) const ALL: &[Rule] = &[
    architecture::documented,
    architecture::crate_headers,
    circles::none,
    super::book::sound,
    fuzzing::complete,
    language::plain,
    layering::directions,
    layering::homes,
    purity::no_io,
    size::short_files,
    unsafe_code::listed,
    words::open_ends,
    words::places,
    words::vocabulary,
];
