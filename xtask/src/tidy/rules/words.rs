//! All text in the repository must make sense to any reader, anywhere, later.

use super::super::problem::Problem;
use super::super::repository::{File, Repository};

// Written in pieces, so that this file does not break its own rules.
const OPEN_ENDS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const FOREIGN_PLACE: &str = concat!("/", "work/");
const TEMPORARY: &str = concat!("\"/", "tmp/");

/// A word to avoid, and words on the same line that allow it.
struct Odd {
    word: &'static str,
    unless: &'static [&'static str],
}

const ODD: &[Odd] = &[
    Odd { word: concat!("age", "nt"), unless: &["user-", "user_", "user "] },
    Odd { word: concat!("pro", "mpt"), unless: &["password", "passphrase"] },
    Odd { word: concat!("this sess", "ion"), unless: &["fuse"] },
];

/// Open ends without an issue number, which would be forgotten.
pub(super) fn open_ends(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in written(repository) {
        for (number, line) in file.lines() {
            for word in OPEN_ENDS {
                let open = positions(line, word).any(|at| !names_an_issue(&line[at + word.len()..]));
                if open {
                    let text = format!("please do it, or write {word}(#NUMBER) with the number of an issue");
                    problems.push(Problem::new(&file.path, number, text));
                }
            }
        }
    }
    problems
}

fn names_an_issue(text: &str) -> bool {
    let text = text.trim_start_matches(['(', ' ', ':']);
    text.strip_prefix('#').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Paths that exist only on one machine.
pub(super) fn places(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in written(repository) {
        for (number, line) in file.lines() {
            if starts_a_path(line, FOREIGN_PLACE) {
                let text =
                    format!("{FOREIGN_PLACE} is a place on one machine: please write it so that it works on any");
                problems.push(Problem::new(&file.path, number, text));
            }
        }
    }
    problems.extend(temporary_files(repository));
    problems
}

/// Fixed temporary paths: a program uses the folder of the environment, tests use a crate.
fn temporary_files(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for source in repository.sources.iter().filter(|s| !s.is_test) {
        let Some(file) = repository.file(&source.path) else { continue };
        let before_tests = source.code.find("#[cfg(test)]").map_or(usize::MAX, |at| source.line_of(at));
        for (number, _) in file.lines().take_while(|(n, _)| *n < before_tests).filter(|(_, l)| l.contains(TEMPORARY)) {
            let text = "temporary files may have another place: please ask std::env::temp_dir()";
            problems.push(Problem::new(&file.path, number, text));
        }
    }
    problems
}

/// Words that describe how something was made, not what it is.
pub(super) fn vocabulary(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in written(repository) {
        for (number, line) in file.lines() {
            let lower = line.to_lowercase();
            for odd in ODD.iter().filter(|odd| is_odd(odd, &lower, file)) {
                let text = format!("please say it without the word {}", odd.word);
                problems.push(Problem::new(&file.path, number, text));
            }
        }
    }
    problems
}

fn is_odd(odd: &Odd, line: &str, file: &File) -> bool {
    let plural = format!("{}s", odd.word);
    // In code it may be the name of an external type; in prose it is a choice.
    let is_prose =
        file.has_extension("md") || line.trim_start().starts_with("//") || line.trim_start().starts_with('#');
    let found = positions(line, odd.word).next().is_some() || positions(line, &plural).next().is_some();
    is_prose && found && !odd.unless.iter().any(|u| line.contains(u))
}

/// Text of our own: not generated, not from other projects, not test input.
fn written(repository: &Repository) -> impl Iterator<Item = &File> {
    repository.files.iter().filter(|file| {
        let generated = ["lock", "snap", "sum"].iter().any(|e| file.has_extension(e));
        !generated && file.path != "LICENSE" && !file.path.starts_with("fixtures/") && !file.path.contains("/corpus/")
    })
}

/// Positions of `word` as a whole word.
fn positions<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| !line[..*at].ends_with(is_name) && !line[*at + word.len()..].starts_with(is_name))
}

/// Whether a path in this line starts with `place`, not just contains it.
fn starts_a_path(line: &str, place: &str) -> bool {
    let inner = |c: char| c.is_alphanumeric() || "_-./}$)>*{".contains(c);
    line.match_indices(place).any(|(at, _)| !line[..at].ends_with(inner))
}
