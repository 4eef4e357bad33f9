//! Comments, messages, documents and names use plain technical English: subject, verb, object, and the technical noun.

use std::collections::BTreeSet;

use super::super::problem::Problem;
use super::super::repository::Repository;
use super::super::source::{Source, is_name};

// Written in pieces, so that this file does not break its own rule.
/// Words that are too vague for a comment, a message or a document.
const VAGUE: &[&str] = &[
    concat!("who", "ever"),
    concat!("some", "body"),
    concat!("no", "body"),
    concat!("any", "body"),
    concat!("an", "ew"),
    concat!("to", "ld"),
    concat!("te", "lls"),
    concat!("sa", "id"),
    concat!("sa", "ys"),
    concat!("lets ", "go of"),
    concat!("let ", "go of"),
    concat!("without a ", "word"),
    concat!("away ", "with it"),
];

/// Names of types, functions and constants that do not identify what they name.
const VAGUE_NAMES: &[&str] = &[
    concat!("Al", "one"),
    concat!("B", "ed"),
    concat!("Boar", "ded"),
    concat!("BRE", "ATH"),
    concat!("Br", "ing"),
    concat!("Com", "ing"),
    concat!("Fou", "nd"),
    concat!("He", "ld"),
    concat!("Kno", "wn"),
    concat!("La", "b"),
    concat!("LO", "OK"),
    concat!("Me", "mo"),
    concat!("PATI", "ENCE"),
    concat!("Pla", "ce"),
    concat!("Pla", "ces"),
    concat!("She", "lf"),
    concat!("Tur", "ns"),
    concat!("War", "den"),
    concat!("acc", "use"),
    concat!("furn", "ish"),
    concat!("ju", "dge"),
    concat!("str", "ike"),
];

/// How many vague words a package, or a folder of documents, may still have. Only ever lower a number.
struct Exempt {
    package: &'static str,
    /// Words in comments, and in documents.
    comments: usize,
    /// Words in strings outside of tests: help, errors, logs.
    strings: usize,
    /// Different names, of tests only those of functions.
    names: usize,
}

const fn exempt(package: &'static str, comments: usize, strings: usize, names: usize) -> Exempt {
    Exempt { package, comments, strings, names }
}

const EXEMPT: &[Exempt] = &[
    // A key of the report of a container's keeper.
    exempt("crates/containers", 0, 1, 0),
    // A key of the store's format.
    exempt("crates/images", 0, 1, 0),
];

/// A vague word.
struct Hit<'a> {
    path: &'a str,
    line: usize,
    word: String,
}

/// The vague words of a package, by kind.
#[derive(Default)]
struct Hits<'a> {
    comments: Vec<Hit<'a>>,
    strings: Vec<Hit<'a>>,
    names: Vec<Hit<'a>>,
}

pub(super) fn plain(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for package in packages(repository) {
        let hits = hits(repository, &package);
        let allowed = EXEMPT.iter().find(|exempt| exempt.package == package);
        let allowed = |number: fn(&Exempt) -> usize| allowed.map_or(0, number);
        problems.extend(excess(&package, "comments", hits.comments, allowed(|exempt| exempt.comments)));
        problems.extend(excess(&package, "strings", hits.strings, allowed(|exempt| exempt.strings)));
        problems.extend(excess(&package, "names", hits.names, allowed(|exempt| exempt.names)));
    }
    problems
}

/// The packages of the table that have fewer vague words than it allows.
pub(super) fn slack(repository: &Repository) -> Vec<String> {
    let counted = EXEMPT.iter().map(|exempt| {
        let hits = hits(repository, exempt.package);
        (exempt, [hits.comments.len(), hits.strings.len(), hits.names.len()])
    });
    let slack = counted.filter_map(|(exempt, found)| {
        let allowed = [exempt.comments, exempt.strings, exempt.names];
        let is_less = found.iter().zip(allowed).any(|(found, allowed)| *found < allowed);
        is_less.then(|| format!("{}: {} has {found:?} instead of {allowed:?}", file!(), exempt.package))
    });
    slack.collect()
}

/// All hits of a kind, if they are more than allowed.
fn excess(package: &str, kind: &str, hits: Vec<Hit<'_>>, allowed: usize) -> Vec<Problem> {
    let number = hits.len();
    let hits = hits.into_iter().filter(|_| number > allowed);
    let problems = hits.map(|hit| {
        let text = match allowed {
            0 => format!("please use plain technical English in {kind}, without `{}`", hit.word),
            _ => format!(
                "please use plain technical English in {kind}, without `{}`: {package} has {number}, {} allows {allowed}",
                hit.word,
                file!()
            ),
        };
        Problem::new(hit.path, hit.line, text)
    });
    problems.collect()
}

/// Each package, and each folder with documents.
fn packages(repository: &Repository) -> BTreeSet<String> {
    let sources = repository.sources.iter().map(|source| &*source.path);
    let documents = repository.files.iter().filter(|file| is_document(&file.path)).map(|file| &*file.path);
    sources.chain(documents).map(|path| package(path).to_owned()).collect()
}

/// `crates/NAME`, or the first folder of the path; `.` for the root.
fn package(path: &str) -> &str {
    let mut ends = path.match_indices('/').map(|(at, _)| at);
    let end = if path.starts_with("crates/") { ends.nth(1) } else { ends.next() };
    end.map_or(".", |end| &path[..end])
}

/// The log of changes is history, and fixtures are input.
fn is_document(path: &str) -> bool {
    path.ends_with(".md") && path != "CHANGELOG.md" && !path.starts_with("fixtures/")
}

fn hits<'a>(repository: &'a Repository, of: &str) -> Hits<'a> {
    let mut hits = Hits::default();
    for file in repository.files.iter().filter(|file| is_document(&file.path) && package(&file.path) == of) {
        hits.comments.extend(prose(&file.path, 1, &file.text));
    }
    let mut names = BTreeSet::new();
    for source in repository.sources.iter().filter(|source| package(&source.path) == of) {
        for literal in &source.literals {
            if literal.is_comment {
                hits.comments.extend(prose(&source.path, literal.line, &literal.text));
            } else if !source.is_test && !literal.is_for_tests {
                hits.strings.extend(vague(&source.path, literal.line, &literal.text));
            }
        }
        let mut is_new = |hit: &Hit<'_>| names.insert(hit.word.clone());
        if !source.is_test {
            hits.names.extend(vague_names(source).filter(&mut is_new));
        }
        hits.names.extend(vague_functions(source).filter(is_new));
    }
    hits
}

/// The vague words of a comment or a document, outside of code in backticks.
fn prose<'a>(path: &'a str, line: usize, text: &str) -> Vec<Hit<'a>> {
    let mut is_code = false;
    let words = text.split_inclusive('`').map(|part| {
        let shown =
            if is_code { part.chars().map(|c| if c == '\n' { c } else { ' ' }).collect() } else { part.to_owned() };
        is_code ^= part.ends_with('`');
        shown
    });
    vague(path, line, &words.collect::<String>())
}

fn vague<'a>(path: &'a str, line: usize, text: &str) -> Vec<Hit<'a>> {
    let mut hits = Vec::new();
    for (number, text) in text.to_lowercase().lines().enumerate() {
        for word in VAGUE {
            let whole = text
                .match_indices(word)
                .filter(|(at, _)| !text[..*at].ends_with(is_name) && !text[*at + word.len()..].starts_with(is_name));
            hits.extend(whole.map(|_| Hit { path, line: line + number, word: (*word).to_owned() }));
        }
    }
    hits
}

/// Names that have a vague word as a part, and definitions with a vague name.
fn vague_names(source: &Source) -> impl Iterator<Item = Hit<'_>> {
    let code = source.code_without_tests();
    let keywords = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod"];
    let (mut before, mut hits) = ("", Vec::new());
    for (number, line) in code.lines().enumerate() {
        for name in line.split(|c| !is_name(c)).filter(|name| !name.is_empty()) {
            let is_vague = parts(name).any(|part| VAGUE.contains(&&*part))
                || keywords.contains(&before) && VAGUE_NAMES.contains(&name);
            if is_vague {
                hits.push(Hit { path: &source.path, line: number + 1, word: name.to_owned() });
            }
            before = name;
        }
    }
    hits.into_iter()
}

/// Functions, also of tests, that have a vague word as a part of their name.
fn vague_functions(source: &Source) -> impl Iterator<Item = Hit<'_>> {
    let name = |line: &str| {
        let (_, after) = line.split_once("fn ")?;
        let name = after.split(|c| !is_name(c)).next().unwrap_or_default();
        let words = format!(" {} ", name.replace('_', " "));
        VAGUE.iter().any(|vague| words.contains(&format!(" {vague} "))).then(|| name.to_owned())
    };
    let lines = (1..).zip(source.code.lines());
    lines.filter_map(move |(line, code)| Some(Hit { path: &source.path, line, word: name(code)? }))
}

/// The words of a name, in lower case: `HowLarge` and `how_large` have two.
fn parts(name: &str) -> impl Iterator<Item = String> + '_ {
    let is_shouted = !name.contains(|c: char| c.is_lowercase());
    let (mut parts, mut part) = (Vec::new(), String::new());
    for c in name.chars() {
        if c == '_' || c.is_uppercase() && !is_shouted {
            parts.push(std::mem::take(&mut part));
        }
        part.extend(c.to_lowercase().filter(|c| *c != '_'));
    }
    parts.push(part);
    parts.into_iter()
}
