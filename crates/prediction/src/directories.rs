//! The directories of the modules of an interpreter, which have versions and architectures in their names.

use std::collections::BTreeSet;

use super::files::{join, parent};
use super::listings::Listings;
use super::sources::contains;

/// Directories that are searched. Perl of Debian searches nine.
const DIRECTORIES: usize = 64;
/// Directories below each other.
const DEPTH: usize = 4;
/// What is below the prefix of an interpreter and has libraries.
const LIBRARIES: [&[u8]; 3] = [b"lib", b"lib64", b"share"];
/// A part of the names of architectures: `x86_64-linux-gnu`.
const LINUX: &[u8] = b"-linux";
/// Where administrators install modules, beside the prefix of the interpreter.
const LOCAL: &[u8] = b"/usr/local";

/// How the directories of an interpreter are named.
pub(crate) struct Names<'a> {
    /// Those that are directly below directories of libraries, in the order in which they are searched.
    pub(crate) top: &'a [&'a [u8]],
    /// Those below these, in this order, before versions and architectures.
    pub(crate) parts: &'a [&'a [u8]],
    pub(crate) is_version: fn(&[u8]) -> bool,
}

impl Names<'_> {
    /// The names of these that have parts of the libraries, in the order in which they are searched.
    fn ordered<'n>(&self, names: &'n BTreeSet<Vec<u8>>) -> Vec<&'n Vec<u8>> {
        let parts = self.parts.iter().filter_map(|part| names.get(*part));
        let others = names.iter().filter(|name| (self.is_version)(name) || is_architecture(name));
        parts.chain(others).take(DIRECTORIES).collect()
    }
}

/// The directories below the libraries of an interpreter. Each comes before those around it.
pub(crate) fn of_interpreter(listings: &mut Listings<'_>, interpreter: &[u8], named: &Names<'_>) -> Vec<Vec<u8>> {
    let prefix = parent(parent(interpreter));
    let mut found = Vec::new();
    for library in libraries(listings, LOCAL).into_iter().chain(libraries(listings, prefix)) {
        for directory in named.top.iter().map(|name| join(&library, name)) {
            found.extend(below(listings, &directory, named).into_iter().rev());
        }
    }
    found.dedup();
    found.truncate(DIRECTORIES);
    found
}

/// Directories with libraries below a prefix, with those of architectures.
fn libraries(listings: &mut Listings<'_>, prefix: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for library in LIBRARIES.iter().map(|name| join(prefix, name)) {
        found.extend(listings.paths(&library, is_architecture).into_iter().take(DIRECTORIES));
        found.push(library);
    }
    found
}

/// A directory and those below it, each before those inside it and after those that are searched later. None if it does not exist.
fn below(listings: &mut Listings<'_>, directory: &[u8], named: &Names<'_>) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut left = vec![(directory.to_vec(), 0)];
    while let Some((directory, depth)) = left.pop().filter(|_| found.len() < DIRECTORIES) {
        let Some(names) = listings.names(&directory) else { continue };
        if depth < DEPTH {
            left.extend(named.ordered(&names).into_iter().map(|name| (join(&directory, name), depth + 1)));
        }
        found.push(directory);
    }
    found
}

fn is_architecture(name: &[u8]) -> bool {
    contains(name, LINUX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::MapFiles;

    #[test]
    fn parts_come_before_versions_and_all_before_what_is_around_them() {
        let files = MapFiles::default()
            .with("/usr/lib/lang/1.0/x", "x")
            .with("/usr/lib/lang/1.0/x86_64-linux/x", "x")
            .with("/usr/lib/lang/other/x", "x")
            .with("/usr/lib/lang/vendor/1.0/x", "x")
            .with("/usr/lib/x86_64-linux-gnu/lang/1.0/x", "x");
        let named = Names { top: &[b"lang"], parts: &[b"vendor"], is_version: |name| name.starts_with(b"1.") };
        let found = of_interpreter(&mut Listings::of(&files), b"/usr/bin/lang", &named);
        let found: Vec<_> = found.iter().map(|path| String::from_utf8_lossy(path)).collect();
        let expected = [
            "/usr/lib/x86_64-linux-gnu/lang/1.0",
            "/usr/lib/x86_64-linux-gnu/lang",
            "/usr/lib/lang/vendor/1.0",
            "/usr/lib/lang/vendor",
            "/usr/lib/lang/1.0/x86_64-linux",
            "/usr/lib/lang/1.0",
            "/usr/lib/lang",
        ];
        assert_eq!(found, expected);
    }
}
