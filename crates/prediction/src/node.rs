//! The modules that a Node.js program requires.

mod packages;
mod specifiers;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::rc::Rc;

use self::packages::{ABOVE, Package, Packages};
use self::specifiers::{Kind, Specifier, specifiers};
use super::files::{File, Files, file_name, join, parent};
use super::listings::Listings;
use super::loader::{FileList, Loader, load_script};
use super::sources::Sources;
use crate::error::Result;

/// Where Debian installs packages, which its Node.js searches last.
const GLOBAL: [&[u8]; 4] = [
    b"/usr/share/nodejs",
    b"/usr/lib/nodejs",
    b"/usr/lib/x86_64-linux-gnu/nodejs",
    b"/usr/lib/aarch64-linux-gnu/nodejs",
];
/// Parts of Debian's Node.js that are files, which every start reads.
const EXTERNAL: [&[u8]; 5] = [
    b"/usr/share/nodejs/acorn/dist/acorn.js",
    b"/usr/share/nodejs/acorn-walk/dist/walk.js",
    b"/usr/share/nodejs/cjs-module-lexer/lexer.js",
    b"/usr/share/nodejs/cjs-module-lexer/dist/lexer.js",
    b"/usr/share/nodejs/undici/undici-fetch.js",
];
/// Endings that a name may lack.
const ENDINGS: [&[u8]; 3] = [b".js", b".json", b".node"];
/// Modules that are part of the program.
const BUILT_IN: &str = " assert assert/strict async_hooks buffer child_process cluster console constants crypto dgram \
    diagnostics_channel dns dns/promises domain events fs fs/promises http http2 https inspector inspector/promises module net \
    os path path/posix path/win32 perf_hooks process punycode querystring readline readline/promises repl stream \
    stream/consumers stream/promises stream/web string_decoder sys timers timers/promises tls trace_events tty url util \
    util/types v8 vm wasi worker_threads zlib ";

/// The files that Node.js reads to start and to load `script` (None: only its start), in the order of its requires. The script itself is not
/// one of them.
///
/// # Errors
/// The content of a file cannot be fetched.
pub(super) fn modules(files: &dyn Files, script: Option<&File>) -> Result<Vec<File>> {
    let mut loader = NodeLoader {
        files,
        listings: Listings::of(files),
        packages: Packages::default(),
        found: FileList::default(),
        sources: Sources::of(files),
    };
    EXTERNAL.iter().filter_map(|path| files.find(path)).for_each(|file| loader.found.add(&file));
    if let Some(script) = script {
        load_script(&mut loader, script)?;
    }
    Ok(loader.found.into_files())
}

struct NodeLoader<'a> {
    files: &'a dyn Files,
    listings: Listings<'a>,
    packages: Packages,
    found: FileList,
    sources: Sources<'a>,
}

impl Loader for NodeLoader<'_> {
    /// What a module requires, with the directory of the module.
    type Request = (Rc<[u8]>, Specifier);

    fn found(&mut self) -> &mut FileList {
        &mut self.found
    }

    /// The file of a module that a module in a directory names.
    fn resolve(&mut self, (directory, specifier): &Self::Request) -> Result<Vec<File>> {
        Ok(self.module(directory, specifier)?.into_iter().collect())
    }

    /// What a module requires. Its `package.json` is read to find out its kind.
    fn requests(&mut self, file: &File) -> Result<Vec<Self::Request>> {
        let name = file_name(&file.path);
        if name.ends_with(b".json") || name.ends_with(b".node") {
            return Ok(Vec::new());
        }
        let directory: Rc<[u8]> = parent(&file.path).into();
        if !name.ends_with(b".cjs") && !name.ends_with(b".mjs") {
            self.package_around(&directory)?;
        }
        let found = specifiers(&self.sources.read(file)?);
        let mut seen = HashSet::new();
        let found = found.into_iter().filter(|specifier| seen.insert(specifier.text.clone()));
        Ok(found.map(|specifier| (Rc::clone(&directory), specifier)).collect())
    }
}

impl NodeLoader<'_> {
    fn module(&mut self, directory: &[u8], specifier: &Specifier) -> Result<Option<File>> {
        let Ok(text) = std::str::from_utf8(&specifier.text) else { return Ok(None) };
        if text.starts_with('/') || is_relative(text) {
            return self.at_path(directory, text.as_bytes());
        }
        if !text.starts_with('#') {
            return self.in_packages(directory, text, specifier.kind);
        }
        let Some(package) = self.package_around(directory)? else { return Ok(None) };
        match package.imported(text, specifier.kind) {
            Some(target) if is_relative(&target) => {
                Ok(self.listings.find(&absolute(&package.directory, target.as_bytes())))
            }
            Some(target) => self.in_packages(directory, &target, specifier.kind),
            None => Ok(None),
        }
    }

    /// A module of a package: `NAME`, `NAME/PART`, `@SCOPE/NAME` or `@SCOPE/NAME/PART`.
    fn in_packages(&mut self, directory: &[u8], text: &str, kind: Kind) -> Result<Option<File>> {
        if text.starts_with("node:") || BUILT_IN.contains(&format!(" {text} ")) {
            return Ok(None);
        }
        let slashes = if text.starts_with('@') { 1 } else { 0 };
        let end = text.match_indices('/').nth(slashes).map_or(text.len(), |(at, _)| at);
        let (name, part) = text.split_at_checked(end).unwrap_or_default();
        let part = part.trim_start_matches('/');
        if let Some(own) = self.package_around(directory)?
            && own.has_exports()
            && own.name.as_deref() == Some(name)
        {
            return Ok(self.exported(&own, part, kind));
        }
        for searched in searched(directory) {
            let package = join(&searched, name.as_bytes());
            if let Some(found) = self.in_package(&package, part, kind)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A part of the package at a path, or the file there.
    fn in_package(&mut self, path: &[u8], part: &str, kind: Kind) -> Result<Option<File>> {
        if self.has_directory(path)
            && let Some(package) = self.package(path)?
            && package.has_exports()
            && let Some(file) = self.exported(&package, part, kind)
        {
            return Ok(Some(file));
        }
        self.at_path(path, part.as_bytes())
    }

    fn exported(&mut self, package: &Package, part: &str, kind: Kind) -> Option<File> {
        let part = if part.is_empty() { ".".to_owned() } else { format!("./{part}") };
        let target = package.exported(&part, kind)?;
        self.listings.find(&absolute(&package.directory, target.as_bytes()))
    }

    /// A path is that of a file, without its ending, or of a directory.
    fn at_path(&mut self, directory: &[u8], path: &[u8]) -> Result<Option<File>> {
        let is_file = ![b"".as_slice(), b".", b".."].contains(&file_name(path)) || path.is_empty();
        let path = absolute(directory, path);
        match is_file.then(|| self.as_file(&path)).flatten() {
            None if self.has_directory(&path) => self.as_directory(&path),
            file => Ok(file),
        }
    }

    fn as_file(&mut self, path: &[u8]) -> Option<File> {
        let endings = std::iter::once(b"".as_slice()).chain(ENDINGS);
        endings.map(|ending| [path, ending].concat()).find_map(|path| self.listings.find(&path))
    }

    fn as_directory(&mut self, path: &[u8]) -> Result<Option<File>> {
        let main = self.package(path)?.and_then(|package| package.main.clone());
        if let Some(main) = main {
            let main = absolute(path, main.as_bytes());
            if let Some(file) = self.as_file(&main).or_else(|| self.as_file(&join(&main, b"index"))) {
                return Ok(Some(file));
            }
        }
        Ok(self.as_file(&join(path, b"index")))
    }

    fn has_directory(&mut self, path: &[u8]) -> bool {
        (path.is_empty() || self.listings.has(parent(path), file_name(path))) && self.listings.names(path).is_some()
    }

    /// The package that a directory is. Node.js reads its `package.json`.
    fn package(&mut self, directory: &[u8]) -> Result<Option<Rc<Package>>> {
        let package = self.packages.at(self.files, &mut self.listings, directory)?;
        package.iter().for_each(|package| self.found.add(&package.file));
        Ok(package)
    }

    fn package_around(&mut self, directory: &[u8]) -> Result<Option<Rc<Package>>> {
        let package = self.packages.around(self.files, &mut self.listings, directory)?;
        package.iter().for_each(|package| self.found.add(&package.file));
        Ok(package)
    }
}

fn is_relative(text: &str) -> bool {
    text == "." || text == ".." || text.starts_with("./") || text.starts_with("../")
}

/// Where the packages are that a module in a directory can use.
fn searched(directory: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let above = std::iter::successors(Some(directory), |here| (!here.is_empty()).then(|| parent(here)));
    let above = above.filter(|here| file_name(here) != b"node_modules").take(ABOVE);
    above.map(|here| join(here, b"node_modules")).chain(GLOBAL.map(<[u8]>::to_vec))
}

/// A path without `.` and `..`. As in Node.js, `..` does not look at links.
fn absolute(directory: &[u8], path: &[u8]) -> Vec<u8> {
    let whole = join(directory, path);
    let mut names: Vec<&[u8]> = Vec::new();
    for name in whole.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            _ => names.push(name),
        }
    }
    names.into_iter().flat_map(|name| [b"/".as_slice(), name]).collect::<Vec<_>>().concat()
}
