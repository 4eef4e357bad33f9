//! The documents: links, anchors, references to code, and the table of contents of the book in `docs/`.
//!
//! `cargo xtask tidy` checks them without further programs; `cargo xtask docs` also builds the book with mdBook.

use std::collections::{HashMap, HashSet};
use std::process::Command;

use anyhow::{Result, bail};
use tarpon_harness::{paths, process};

use super::problem::Problem;
use super::repository::{File, Repository};

const BOOK: &str = "docs/";
const SUMMARY: &str = "docs/SUMMARY.md";
/// Pages outside of the book.
const OUTSIDE: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
/// Prefix by which a page of the book names a file that is not part of the book.
const ADDRESS: &str = "https://github.com/tarpon-fs/tarpon/blob/main/";
/// A code span that starts with one of these is the path of a file or folder here.
const FOLDERS: &[&str] = &["crates/", "xtask/", "tests/", "bench/", "benches/", "harness/", "docs/", "contrib/"];

/// Checks the documents and builds the book.
pub(crate) fn run() -> Result<()> {
    let repository = Repository::load(&paths::root())?;
    let problems = sound(&repository);
    for problem in &problems {
        println!("{problem}");
    }
    if !problems.is_empty() {
        bail!("{} lines of the documents are wrong", problems.len());
    }
    let Some(mdbook) = process::find_in_cargo_home("mdbook") else {
        println!(
            "{} pages are sound; to build the book, install mdBook: cargo install --locked mdbook",
            pages(&repository).count()
        );
        return Ok(());
    };
    let folder = paths::target().join("book");
    process::check(Command::new(mdbook).arg("build").arg("--dest-dir").arg(&folder).arg(paths::root().join(BOOK)))?;
    println!("{}", folder.join("index.html").display());
    Ok(())
}

/// The rule: every link has a target, every path exists, and the book has all of its pages.
pub(super) fn sound(repository: &Repository) -> Vec<Problem> {
    let all: HashSet<&str> =
        repository.files.iter().map(|file| &*file.path).chain(repository.binaries.iter().map(|path| &**path)).collect();
    let anchors: HashMap<&str, HashSet<String>> =
        pages(repository).map(|page| (&*page.path, anchors(&page.text))).collect();
    let mut problems = Vec::new();
    for page in pages(repository) {
        for (line, found) in references(&page.text) {
            let wrong = match found {
                Reference::Link(target) => wrong_link(&page.path, &target, &all, &anchors),
                Reference::Code(span) => wrong_path(repository, &span, &all),
            };
            problems.extend(wrong.map(|text| Problem::new(&page.path, line, text)));
        }
    }
    problems.extend(missing_chapters(repository));
    problems.extend(comments_on_missing_pages(repository, &all));
    problems
}

/// Comments that name a nonexistent page of the book.
fn comments_on_missing_pages(repository: &Repository, all: &HashSet<&str>) -> Vec<Problem> {
    let is_end = |c: char| !c.is_ascii_alphanumeric() && !"/._-".contains(c);
    let mut problems = Vec::new();
    for file in repository.files.iter().filter(|file| file.has_extension("rs")) {
        for (number, line) in file.lines().filter(|(_, line)| line.trim_start().starts_with("//")) {
            let named = line.match_indices(BOOK).filter_map(|(at, _)| line[at..].split(is_end).next());
            let pages = named.filter_map(|name| Some(&name[..name.find(".md")? + ".md".len()]));
            let missing = pages.filter(|page| !all.contains(page));
            let text = |page| format!("please correct the comment: there is no {page}");
            problems.extend(missing.map(|page| Problem::new(&file.path, number, text(page))));
        }
    }
    problems
}

fn pages(repository: &Repository) -> impl Iterator<Item = &File> {
    let is_page = |path: &str| OUTSIDE.contains(&path) || (path.starts_with(BOOK) && path.ends_with(".md"));
    repository.files.iter().filter(move |file| is_page(&file.path))
}

/// Pages of the book that are no chapter.
fn missing_chapters(repository: &Repository) -> Vec<Problem> {
    let mut book = pages(repository).filter(|page| page.path.starts_with(BOOK)).peekable();
    if book.peek().is_none() {
        return Vec::new();
    }
    let Some(summary) = repository.file(SUMMARY) else {
        return vec![Problem::new(SUMMARY, 1, "please list the pages of the book here")];
    };
    let links = references(&summary.text).into_iter().filter_map(|(_, found)| match found {
        Reference::Link(target) => resolve(SUMMARY, &target),
        Reference::Code(_) => None,
    });
    let chapters: HashSet<String> = links.collect();
    let missing = book.filter(|page| page.path != SUMMARY && !chapters.contains(&page.path));
    missing.map(|page| Problem::new(&page.path, 1, format!("please list this page in {SUMMARY}"))).collect()
}

fn wrong_link(
    page: &str,
    target: &str,
    all: &HashSet<&str>,
    anchors: &HashMap<&str, HashSet<String>>,
) -> Option<String> {
    let (target, is_address) = match target.strip_prefix(ADDRESS) {
        Some(path) => (path, true),
        None if target.contains("://") || target.starts_with("mailto:") => return None,
        None => (target, false),
    };
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match path {
        "" => page.to_owned(),
        path if is_address => path.to_owned(),
        path => resolve(page, path)?,
    };
    if !exists(&path, all) {
        return Some(format!("please correct the link: there is no {path}"));
    }
    if page.starts_with(BOOK) && !is_address && !path.starts_with(BOOK) {
        return Some(format!("{path} is not part of the book: please link to {ADDRESS}{path}"));
    }
    let known = anchors.get(&*path).is_none_or(|anchors| anchor.is_empty() || anchors.contains(anchor));
    (!known).then(|| format!("please correct the link: {path} has no heading #{anchor}"))
}

/// The path of a link's target in the repository, without the anchor.
fn resolve(page: &str, link: &str) -> Option<String> {
    let link = link.split('#').next().unwrap_or_default();
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Checks a code span: a file, or `FILE:FUNCTION`, must exist.
fn wrong_path(repository: &Repository, span: &str, all: &HashSet<&str>) -> Option<String> {
    let is_placeholder = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-:".contains(c);
    if !FOLDERS.iter().any(|folder| span.starts_with(folder))
        || !span.chars().all(is_path)
        || span.split('/').any(is_placeholder)
    {
        return None;
    }
    let (path, function) = span.split_once(':').unwrap_or((span, ""));
    if !exists(path.trim_end_matches('/'), all) {
        return Some(format!("please correct the path: there is no {path}"));
    }
    let defines = |file: &File| {
        let definitions = file.text.match_indices("fn ").map(|(at, found)| &file.text[at + found.len()..]);
        let is_end = |c: char| !c.is_alphanumeric() && c != '_';
        definitions.into_iter().any(|rest| rest.split(is_end).next() == Some(function))
    };
    let is_there = function.is_empty() || repository.file(path).is_some_and(defines);
    (!is_there).then(|| format!("please correct the name: {path} has no function {function}"))
}

/// Whether it is a file, or a folder with files.
fn exists(path: &str, all: &HashSet<&str>) -> bool {
    let folder = format!("{path}/");
    all.contains(path) || all.iter().any(|file| file.starts_with(&folder))
}

#[derive(Debug, PartialEq, Eq)]
enum Reference {
    /// The target of a link or an image.
    Link(String),
    /// The text between backticks.
    Code(String),
}

/// Links and code spans outside of fenced blocks, with their line numbers.
fn references(text: &str) -> Vec<(usize, Reference)> {
    let mut found = Vec::new();
    for (start, paragraph) in paragraphs(text) {
        let line_at = |at: usize| start + paragraph[..at].matches('\n').count();
        let mut rest = 0;
        while let Some(at) = paragraph[rest..].find(['`', ']']).map(|at| rest + at) {
            let behind = &paragraph[at + 1..];
            rest = at + 1;
            if paragraph[at..].starts_with('`') {
                let Some(end) = behind.find('`') else { break };
                found.push((line_at(at), Reference::Code(behind[..end].to_owned())));
                rest += end + 1;
            } else if let Some(target) = behind.strip_prefix('(').and_then(|link| Some(&link[..link.find(')')?])) {
                found.push((line_at(at), Reference::Link(target.to_owned())));
                rest += target.len() + 2;
            }
        }
    }
    found
}

/// The paragraphs outside of fenced blocks, with the numbers of their first lines. A code span ends with its paragraph.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let (mut all, mut last, mut is_block): (Vec<(usize, String)>, _, _) = (Vec::new(), None, false);
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if !is_block && !line.trim().is_empty() {
            if last.is_none_or(|last| last + 1 != number) {
                all.push((number, String::new()));
            }
            if let Some((_, paragraph)) = all.last_mut() {
                paragraph.push_str(line);
                paragraph.push('\n');
            }
            last = Some(number);
        }
    }
    all
}

/// The anchors of the headings, as generated by GitHub and mdBook.
fn anchors(text: &str) -> HashSet<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = paragraphs(text).into_iter().flat_map(|(_, paragraph)| {
        let headings = paragraph.lines().filter(|line| line.starts_with('#')).map(str::to_owned);
        headings.collect::<Vec<_>>()
    });
    let name = |heading: String| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}-{}", *count - 1) }
    };
    headings.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The problems of a book with these pages.
    fn problems(pages: &[(&str, &str)]) -> Vec<String> {
        let files = pages.iter().map(|(path, text)| File { path: (*path).into(), text: (*text).into() });
        sound(&Repository::new(files.collect(), vec!["docs/picture.png".into()]))
            .iter()
            .map(Problem::to_string)
            .collect()
    }

    /// The problem of a page in a folder of the book with this text.
    fn of(text: &str) -> Option<String> {
        let mut problems = problems(&[
            (SUMMARY, "# Summary\n\n- [A](design/a.md)\n- [B](b.md)\n"),
            ("docs/b.md", "# Words and `code`: two\n\n## Again\n\n## Again\n"),
            ("docs/design/a.md", text),
            ("crates/one/src/lib.rs", "fn it() {}\n"),
            ("LICENSE", "free\n"),
        ]);
        assert!(problems.len() <= 1, "{problems:#?}");
        problems.pop()
    }

    #[test]
    fn links_lead_to_files_and_headings_that_exist() {
        for sound in [
            "[b](../b.md)",
            "[b](../b.md#words-and-code-two)",
            "[b](../b.md#again-1)",
            "![a picture](../picture.png)",
            "# Here\n\n[above](#here)",
            "[elsewhere](https://example.com/nothing)",
            "[licence](https://github.com/tarpon-fs/tarpon/blob/main/LICENSE)",
            "`[not](a link)`",
            "```text\n[not](a link)\n```",
        ] {
            assert_eq!(of(sound), None, "{sound}");
        }
        for (wrong, problem) in [
            ("[b](b.md)", "there is no docs/design/b.md"),
            ("\n\n[b](../b.md#other)", ":3: please correct the link: docs/b.md has no heading #other"),
            ("[above](#here)", "no heading #here"),
            ("[licence](../../LICENSE)", "please link to https://github.com"),
            ("[licence](https://github.com/tarpon-fs/tarpon/blob/main/COPYING)", "there is no COPYING"),
        ] {
            let found = of(wrong).unwrap_or_default();
            assert!(found.contains(problem), "{wrong}: {found}");
        }
    }

    #[test]
    fn paths_and_functions_in_code_spans_exist() {
        for sound in
            ["`crates/one`", "`crates/one/src/`", "`crates/one/src/lib.rs:it`", "`crates/NAME/x`", "`crates/… x`"]
        {
            assert_eq!(of(sound), None, "{sound}");
        }
        for wrong in ["`crates/two`", "`crates/one/src/lib.rs:its`", "`crates/one/src/lib.rs:i`", "a\n`docs/c.md`"] {
            assert!(of(wrong).is_some(), "{wrong}");
        }
    }

    #[test]
    fn comments_name_pages_that_exist() {
        let comment = |page: &str| format!("//! See docs/{page}.\nconst A: &str = \"docs/c.md\";\n");
        let of = |page: &str| {
            problems(&[(SUMMARY, "[B](b.md)\n"), ("docs/b.md", ""), ("crates/one/src/lib.rs", &comment(page))])
        };
        assert_eq!(of("b.md"), [""; 0]);
        assert_eq!(of("c.md"), ["crates/one/src/lib.rs:1: please correct the comment: there is no docs/c.md"]);
    }

    #[test]
    fn every_page_is_a_chapter() {
        let found = problems(&[(SUMMARY, "# Summary\n\n- [B](b.md)\n"), ("docs/b.md", ""), ("docs/c.md", "")]);
        assert_eq!(found, ["docs/c.md:1: please list this page in docs/SUMMARY.md"]);
        assert_eq!(problems(&[("docs/b.md", "")]), ["docs/SUMMARY.md:1: please list the pages of the book here"]);
    }
}
