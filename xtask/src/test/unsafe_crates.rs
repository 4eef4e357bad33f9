//! Every crate in the program that contains unsafe code is described in docs/design/dependencies.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tarpon_harness::{paths, process};

const NOTES: &str = "docs/design/dependencies.md";

/// The target of the notes.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What may follow the word for it to begin unsafe code.
const FOLLOWING: &[&str] = &["{", "fn ", "impl ", "impl<", "extern ", "trait "];

/// A crate by its name and, as `MAJOR.MINOR`, its version.
type Crate = (String, String);

/// Compares the notes with the crates of the program.
pub(super) fn check() -> Result<()> {
    let text = fs::read_to_string(paths::root().join(NOTES)).with_context(|| format!("cannot read {NOTES}"))?;
    let differences = differences(&described(&text), &counted()?.into_keys().collect());
    if !differences.is_empty() {
        bail!("{}", differences.join("\n"));
    }
    Ok(())
}

/// Prints the number of unsafe places of each crate.
pub(super) fn print() -> Result<()> {
    for ((name, version), places) in counted()? {
        println!("{places:5} {name} {version}");
    }
    Ok(())
}

fn differences(described: &BTreeSet<Crate>, found: &BTreeSet<Crate>) -> Vec<String> {
    let missing = found.difference(described);
    let missing =
        missing.map(|(name, version)| format!("{name} {version} contains unsafe code: describe it in {NOTES}"));
    let gone = described.difference(found);
    let gone = gone.map(|(name, version)| {
        format!(
            "{NOTES} describes {name} {version}, which is not in the program or has no unsafe code: correct its row"
        )
    });
    missing.chain(gone).collect()
}

/// The crates in the first cells of the tables: names in backticks, each with its version behind it.
fn described(text: &str) -> BTreeSet<Crate> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    let crates = cells.flat_map(|cell| cell.split(", "));
    crates.filter_map(|one| one.trim().trim_start_matches('`').split_once("` ")).map(owned).collect()
}

fn owned((name, version): (&str, &str)) -> Crate {
    (name.to_owned(), version.trim().to_owned())
}

/// The crates of the program with unsafe code, and the number of its places.
fn counted() -> Result<BTreeMap<Crate, usize>> {
    let folders = folders()?;
    let mut counted = BTreeMap::new();
    for (name, version) in program()? {
        let folder = folders.get(&(name.clone(), version.clone()));
        let folder = folder.with_context(|| format!("cargo metadata names no folder of {name} {version}"))?;
        let places = places(&folder.join("src"))?;
        if places > 0 {
            let minor: Vec<_> = version.split('.').take(2).collect();
            counted.insert((name, minor.join(".")), places);
        }
    }
    Ok(counted)
}

/// The crates of the program that are not of this repository, with full versions. Procedural macros run at compile time.
fn program() -> Result<Vec<Crate>> {
    let args = ["tree", "--locked", "-p", "tarpon", "-e", "normal,no-proc-macro", "--target", TARGET];
    let text = cargo(Command::new("cargo").args(args).args(["--prefix", "none", "--format", "{p}"]))?;
    let lines: BTreeSet<_> = text.lines().filter(|line| !line.contains("(/")).collect();
    let crates = lines.into_iter().filter_map(|line| {
        let (name, rest) = line.split_once(" v")?;
        Some(owned((name, rest.split(' ').next()?)))
    });
    Ok(crates.collect())
}

/// The folders of all crates of Cargo.lock, by name and full version.
fn folders() -> Result<BTreeMap<Crate, PathBuf>> {
    let text = cargo(Command::new("cargo").args(["metadata", "--locked", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata prints no JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let folders = packages.iter().filter_map(|package| {
        let manifest = Path::new(package["manifest_path"].as_str()?);
        let name = owned((package["name"].as_str()?, package["version"].as_str()?));
        Some((name, manifest.parent()?.to_owned()))
    });
    Ok(folders.collect())
}

fn cargo(command: &mut Command) -> Result<String> {
    process::output(command.current_dir(paths::root()))
}

/// The lines with unsafe code in the Rust files of a folder.
fn places(folder: &Path) -> Result<usize> {
    let mut sum = 0;
    // A crate may have its library elsewhere; then it is counted as having none, and its tables are C.
    let Ok(entries) = fs::read_dir(folder) else { return Ok(0) };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            sum += places(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            sum += String::from_utf8_lossy(&text).lines().filter(|line| is_unsafe(line)).count();
        }
    }
    Ok(sum)
}

fn is_unsafe(line: &str) -> bool {
    let code = line.trim_start();
    !code.starts_with("//")
        && code.match_indices("unsafe").any(|(start, word)| {
            let before = code[..start].chars().next_back();
            let behind = &code[start + word.len()..];
            let is_word = before.is_none_or(|char| !char.is_alphanumeric() && char != '_');
            is_word && FOLLOWING.iter().any(|what| behind.trim_start().starts_with(what))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_unsafe_code_are_counted_and_comments_and_lints_are_not() {
        for line in ["unsafe {", "  let a = unsafe{ b() };", "pub unsafe fn a()", "unsafe impl<T> Send for A<T> {}"] {
            assert!(is_unsafe(line), "{line}");
        }
        for line in ["// unsafe {", "#![forbid(unsafe_code)]", "fn is_unsafe {", "\"unsafe\"", "/// unsafe fn"] {
            assert!(!is_unsafe(line), "{line}");
        }
    }

    #[test]
    fn a_crate_without_a_note_and_a_note_without_a_crate_are_named() {
        let notes = "| crate | x |\n|---|---|\n| `a` 1.2, `b-c` 0.3 | `d` 4.5 |\ntext `e` 6.7\n";
        let described = described(notes);
        let crates = |list: &[(&str, &str)]| list.iter().copied().map(owned).collect::<BTreeSet<_>>();
        assert_eq!(described, crates(&[("a", "1.2"), ("b-c", "0.3")]));
        assert!(differences(&described, &described).is_empty());
        let found = differences(&described, &crates(&[("a", "1.3"), ("b-c", "0.3")]));
        assert!(found[0].starts_with("a 1.3 contains unsafe code"), "{found:?}");
        assert!(found[1].contains("describes a 1.2"), "{found:?}");
    }
}
