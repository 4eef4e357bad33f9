//! Installed gems, and where their libraries are.

use std::collections::BTreeMap;

use tarpon_oci::limits;

use super::super::files::{File, file_name, join, parent};
use super::super::listings::Listings;

/// Directories with gems.
const HOMES: usize = 32;
/// Gems, and directories with their libraries. Large applications have about 500.
const GEMS: usize = 4096;
/// What is in the directories with libraries, without parts of it: an application of 500 gems has about 3,000.
const LIBRARIES: usize = 1 << 16;
/// Gems with the same first component of their libraries.
const SAME: usize = 256;
/// Specifications that are read: an interpreter has about 90, an application one for each of its gems.
const SPECIFICATIONS: usize = 2048;
/// Where gems are besides below the libraries of the interpreter: the official image's `GEM_HOME`.
const HOME: &[u8] = b"/usr/local/bundle";
/// Where Debian installs them, with a version below.
const BY_VERSION: [&[u8]; 2] = [b"/var/lib/gems", b"/usr/share/rubygems-integration"];
/// Below the working directory, where Bundler may install them, with a version below.
const VENDORED: &[u8] = b"vendor/bundle/ruby";
/// Where the programs of a gem are.
const PROGRAMS: [&[u8]; 2] = [b"exe", b"bin"];
/// Words of a line of a Gemfile that names a gem.
const GEM: [&[u8]; 2] = [b"gem ", b"gem("];

/// The directories that have gems, and the libraries in them.
pub(super) struct Gems {
    homes: Vec<Vec<u8>>,
    /// Directories with libraries, by the first component of what is in them without its ending. None: not listed yet.
    libraries: Option<BTreeMap<Vec<u8>, Vec<Vec<u8>>>>,
    are_used: bool,
}

/// Specifications that are read at different times.
#[derive(Debug, Clone, Copy)]
pub(super) enum Specifications {
    /// Those of the gems of the interpreter, which each start reads.
    Default,
    /// Those of other gems, which are read once a program loads one of these.
    Installed,
}

impl Gems {
    /// Of an interpreter with these directories. `named`: further ones, joined by colons.
    pub(super) fn of(listings: &mut Listings<'_>, core: &[Vec<u8>], named: &[u8], directory: &[u8]) -> Self {
        let mut homes: Vec<Vec<u8>> = named.split(|byte| *byte == b':').map(<[u8]>::to_vec).collect();
        homes.push(HOME.to_vec());
        let of_core = core.iter().map(|directory| join(directory, b"gems"));
        let by_version = BY_VERSION.iter().map(|path| path.to_vec()).chain([join(directory, VENDORED)]);
        for parent in of_core.chain(by_version) {
            let paths = listings.paths(&parent, |name| is_version(name) || name == b"all");
            homes.extend(paths.into_iter().take(HOMES));
        }
        homes.retain(|home| home.starts_with(b"/") && home.len() <= limits::PATH_BYTES);
        homes.truncate(HOMES);
        Self { homes, libraries: None, are_used: false }
    }

    /// The specifications of gems.
    pub(super) fn specifications(&self, listings: &mut Listings<'_>, kind: Specifications) -> Vec<File> {
        let mut found = Vec::new();
        for home in &self.homes {
            let directory = match kind {
                Specifications::Default => join(home, b"specifications/default"),
                Specifications::Installed => join(home, b"specifications"),
            };
            let paths = listings.paths(&directory, |name| name.ends_with(b".gemspec"));
            found.extend(paths.iter().filter_map(|path| listings.find(path)));
        }
        found.truncate(SPECIFICATIONS);
        found
    }

    /// Whether a library of an installed gem was found.
    pub(super) fn are_used(&self) -> bool {
        self.are_used
    }

    /// A library of a gem, of later versions first.
    pub(super) fn find(&mut self, listings: &mut Listings<'_>, library: &[u8]) -> Option<File> {
        let homes = &self.homes;
        let libraries = self.libraries.get_or_insert_with(|| by_name(listings, homes));
        let first = library.split(|byte| *byte == b'/').next().unwrap_or_default();
        let mut directories = libraries.get(stem(first))?.iter();
        let found = directories.find_map(|directory| listings.find_below(directory, library));
        self.are_used |= found.is_some();
        found
    }

    /// A program of a gem.
    pub(super) fn program(&self, listings: &mut Listings<'_>, gem: &[u8], program: &[u8]) -> Option<File> {
        let start = [gem, b"-"].concat();
        let is_version = |name: &&Vec<u8>| name.get(start.len()).is_some_and(u8::is_ascii_digit);
        let mut found = Vec::new();
        for directory in self.homes.iter().map(|home| join(home, b"gems")) {
            let Some(names) = listings.names(&directory) else { continue };
            let names = names.range(start.clone()..).take_while(|name| name.starts_with(&start)).filter(is_version);
            found.extend(names.take(SAME).map(|name| join(&directory, name)));
        }
        // The latest version first.
        let mut paths = found.iter().rev().flat_map(|gem| PROGRAMS.map(|folder| join(&join(gem, folder), program)));
        paths.find_map(|path| listings.find(&path))
    }
}

/// The directories of gems in one that has them, later versions first.
fn gems_in(listings: &mut Listings<'_>, home: &[u8]) -> Vec<Vec<u8>> {
    let directory = join(home, b"gems");
    let names = listings.names(&directory);
    let names = names.iter().flat_map(|names| names.iter().rev()).take(GEMS);
    names.map(|name| join(&directory, name)).collect()
}

/// The directories with libraries of all gems.
fn by_name(listings: &mut Listings<'_>, homes: &[Vec<u8>]) -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
    let mut libraries: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
    let mut count = 0_usize;
    let gems = homes.iter().flat_map(|home| gems_in(listings, home)).collect::<Vec<_>>();
    for gem in gems.iter().take(GEMS) {
        let library = join(gem, b"lib");
        for directory in std::iter::once(library).chain(extensions(listings, gem)) {
            let Some(names) = listings.names(&directory) else { continue };
            for name in names.iter().take(LIBRARIES.saturating_sub(count)) {
                let same = libraries.entry(stem(name).to_vec()).or_default();
                if same.len() < SAME {
                    same.push(directory.clone());
                }
            }
            count += names.len();
        }
    }
    libraries
}

/// The directories with the compiled libraries of a gem: `extensions/ARCHITECTURE/VERSION/GEM`.
fn extensions(listings: &mut Listings<'_>, gem: &[u8]) -> Vec<Vec<u8>> {
    let mut found = vec![join(parent(parent(gem)), b"extensions")];
    for _ in 0..2 {
        let mut next = Vec::new();
        for directory in &found {
            next.extend(listings.paths(directory, |_| true).into_iter().take(HOMES));
        }
        found = next;
    }
    found.iter().map(|directory| join(directory, file_name(gem))).collect()
}

/// A name without the ending of a library.
fn stem(name: &[u8]) -> &[u8] {
    [b".rb".as_slice(), b".so"].into_iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

/// The names of the gems of a Gemfile.
pub(super) fn named_in(gemfile: &[u8]) -> Vec<Vec<u8>> {
    let lines = gemfile.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let names = lines.filter_map(|line| {
        let rest = GEM.iter().find_map(|word| line.strip_prefix(*word))?.trim_ascii_start();
        let (quote, rest) = rest.split_first().filter(|(quote, _)| b"\"'".contains(quote))?;
        rest.split(|byte| byte == quote).next()
    });
    names.take(GEMS).map(<[u8]>::to_vec).collect()
}

/// Whether a directory has the name of a version: `3.1.0`.
pub(super) fn is_version(name: &[u8]) -> bool {
    name.first().is_some_and(u8::is_ascii_digit) && name.contains(&b'.')
}
