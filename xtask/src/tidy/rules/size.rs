//! Files stay small enough to understand.

use super::super::problem::Problem;
use super::super::repository::Repository;

/// Maximum number of lines of a file, without tests inside it.
const LONGEST: usize = 800;

pub(super) fn short_files(repository: &Repository) -> Vec<Problem> {
    let code = repository.sources.iter().filter(|s| !s.is_test);
    let long = code.map(|s| (s, s.lines_without_tests())).filter(|(_, lines)| *lines > LONGEST);
    long.map(|(s, lines)| {
        let text = format!("{lines} lines without tests, {LONGEST} is the most: please split this file");
        Problem::new(&s.path, LONGEST + 1, text)
    })
    .collect()
}
