//! The configuration and the extensions of PHP, and the sources that a program includes.

mod configuration;
mod includes;
#[cfg(test)]
mod tests;

use self::includes::{Scope, Source};
use super::files::{File, Files, file_name, join, parent};
use super::listings::Listings;
use super::loader::{FileList, Loader, load, load_script};
use super::options::Options;
use super::sources::{Sources, contains};
use crate::error::Result;

/// Options with a value, in the same word or the next one.
const WITH_VALUE: &[u8] = b"cdfrBRFEStz";
/// The first page of a site, below the working directory, that servers run for a request.
const PAGES: [&[u8]; 2] = [b"index.php", b"public/index.php"];
/// Interfaces to PHP with a configuration of their own: the command, and servers.
const COMMAND: &[u8] = b"cli";
const FPM: &[u8] = b"fpm";
const APACHE: &[u8] = b"apache2";

/// A program that runs PHP.
pub(super) struct PhpCommand<'a> {
    /// `php`, `php-fpm8.2`, or the library that a web server loads.
    pub(super) interpreter: &'a File,
    pub(super) arguments: &'a [Vec<u8>],
    /// The working directory.
    pub(super) directory: &'a [u8],
}

/// Whether a program or a library of this name has PHP.
pub(super) fn is_interpreter(name: &[u8]) -> bool {
    name.starts_with(b"php") || is_module(name)
}

/// Whether this is the library by which web servers run PHP.
pub(super) fn is_module(name: &[u8]) -> bool {
    name.starts_with(b"libphp") || name.starts_with(b"mod_php")
}

/// The files that PHP reads to start and to run a program, in their order. A script itself is not one of them.
///
/// # Errors
/// The content of a file cannot be fetched.
pub(super) fn modules(files: &dyn Files, command: &PhpCommand<'_>) -> Result<Vec<File>> {
    let mut loader = PhpLoader {
        sources: Sources::of(files),
        listings: Listings::of(files),
        scope: Scope::of(command.directory),
        found: FileList::default(),
    };
    let name = file_name(&command.interpreter.path);
    let interface = match name {
        _ if is_module(name) => APACHE,
        _ if contains(name, FPM) => FPM,
        _ => COMMAND,
    };
    for file in configuration::read(&mut loader.listings, &mut loader.sources, &command.interpreter.path, interface)? {
        loader.found.add(&file);
    }
    loader.run(command, interface == COMMAND)?;
    Ok(loader.found.into_files())
}

struct PhpLoader<'a> {
    sources: Sources<'a>,
    listings: Listings<'a>,
    scope: Scope,
    found: FileList,
}

impl PhpLoader<'_> {
    fn run(&mut self, command: &PhpCommand<'_>, is_command: bool) -> Result<()> {
        let directory = command.directory;
        let pages = |directory: &[u8]| PAGES.map(|page| join(directory, page));
        if !is_command {
            return load(self, pages(directory).into());
        }
        let options = Options::of(command.arguments, WITH_VALUE, b"");
        let value = |letter: u8| options.letters.iter().find(|(found, _)| *found == letter).map(|(_, value)| *value);
        if let Some(code) = value(b'r') {
            let source = Source { text: &[b"<?php ", code].concat(), directory, path: b"" };
            let requests = self.scope.requests(&source);
            return load(self, requests);
        }
        let script = value(b'f').or_else(|| options.rest.first().map(Vec::as_slice));
        if let Some(script) = script.and_then(|script| self.listings.find(&join(directory, script))) {
            load_script(self, &script)?;
        }
        // The server of `-S`, with the directory of `-t`.
        if value(b'S').is_some() {
            load(self, pages(&join(directory, value(b't').unwrap_or_default())).into())?;
        }
        Ok(())
    }
}

impl Loader for PhpLoader<'_> {
    /// A path.
    type Request = Vec<u8>;

    fn found(&mut self) -> &mut FileList {
        &mut self.found
    }

    fn resolve(&mut self, path: &Vec<u8>) -> Result<Vec<File>> {
        Ok(self.listings.find(path).into_iter().collect())
    }

    fn requests(&mut self, file: &File) -> Result<Vec<Vec<u8>>> {
        let text = self.sources.read(file)?;
        Ok(self.scope.requests(&Source { text: &text, directory: parent(&file.path), path: &file.path }))
    }
}
