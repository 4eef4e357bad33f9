//! The modules that a Perl program uses.

mod requests;
#[cfg(test)]
mod tests;

use self::requests::{Request, requests};
use super::directories::{self, Names};
use super::files::{File, Files, file_name, join, normal, parent};
use super::listings::Listings;
use super::loader::{FileList, Loader, load, load_script};
use super::options::Options;
use super::sources::Sources;
use crate::error::Result;

/// Directories in which modules are searched, those that a program adds included.
const SEARCHED: usize = 128;
/// Names of directories with modules, in the order of `@INC`: of administrators, of distributions, of the core.
const TOP: [&[u8]; 4] = [b"site_perl", b"perl5", b"perl-base", b"perl"];
const PARTS: [&[u8]; 3] = [b"site_perl", b"vendor_perl", b"core_perl"];
/// What modules load where their sources do not show it.
const HIDDEN: [(&[u8], &[u8]); 3] =
    [(b"Exporter", b"Exporter::Heavy"), (b"File::Spec", b"File::Spec::Unix"), (b"Carp", b"overloading")];
/// The configuration of Debian's Perl, which is searched for modules.
const ETC: &[u8] = b"/etc/perl";
/// The directory of the program, as sources name it.
const PROGRAM: [&[u8]; 3] = [b"$FindBin::Bin", b"$FindBin::RealBin", b"$Bin"];
/// Options with a value: the code of `-e` and `-E`, the directory of `-I`, the module of `-M` and `-m`, and others.
const WITH_VALUE: &[u8] = b"eEI";
const WITH_REST: &[u8] = b"MmCDFVixd";
/// Endings of programs that others run: `plackup app.psgi`.
const PROGRAMS: [&[u8]; 2] = [b".psgi", b".pl"];

/// A command that is run by Perl.
pub(super) struct PerlCommand<'a> {
    pub(super) interpreter: &'a File,
    pub(super) arguments: &'a [Vec<u8>],
    /// The working directory.
    pub(super) directory: &'a [u8],
    /// The value of `PERL5LIB`.
    pub(super) library: &'a [u8],
}

/// The files that Perl reads to run a program, in their order. A script itself is not one of them.
///
/// # Errors
/// The content of a file cannot be fetched.
pub(super) fn modules(files: &dyn Files, command: &PerlCommand<'_>) -> Result<Vec<File>> {
    let mut listings = Listings::of(files);
    let named = Names { top: &TOP, parts: &PARTS, is_version: |name| name.starts_with(b"5.") };
    let core = directories::of_interpreter(&mut listings, &command.interpreter.path, &named);
    let own = command.library.split(|byte| *byte == b':').filter(|directory| directory.starts_with(b"/"));
    let search = own.map(<[u8]>::to_vec).chain([ETC.to_vec()]).chain(core).take(SEARCHED).collect();
    let mut loader = PerlLoader {
        sources: Sources::of(files),
        listings,
        search,
        directory: command.directory.to_vec(),
        program: command.directory.to_vec(),
        found: FileList::default(),
    };
    loader.run(command)?;
    Ok(loader.found.into_files())
}

struct PerlLoader<'a> {
    sources: Sources<'a>,
    listings: Listings<'a>,
    /// Where modules are searched, in this order: `@INC`.
    search: Vec<Vec<u8>>,
    /// The working directory.
    directory: Vec<u8>,
    /// The directory of the script.
    program: Vec<u8>,
    found: FileList,
}

impl PerlLoader<'_> {
    fn run(&mut self, command: &PerlCommand<'_>) -> Result<()> {
        let directory = command.directory;
        let options = Options::of(command.arguments, WITH_VALUE, WITH_REST);
        load(self, options.letters.iter().flat_map(|option| of_option(*option)).collect())?;
        let has_code = options.letters.iter().any(|(letter, _)| b"eE".contains(letter));
        let script = options.rest.first().filter(|_| !has_code);
        if let Some(script) = script.and_then(|script| self.listings.find(&join(directory, script))) {
            self.program = parent(&script.path).to_vec();
            load_script(self, &script)?;
        }
        let is_program = |word: &&Vec<u8>| PROGRAMS.iter().any(|ending| word.ends_with(ending));
        let others =
            options.rest.iter().skip(1).filter(is_program).map(|word| Request::File(join(directory, word))).collect();
        load(self, others)
    }

    /// The path of a directory or a file that a source names.
    fn path(&self, name: &[u8]) -> Vec<u8> {
        let below = PROGRAM.iter().find_map(|variable| name.strip_prefix(*variable));
        normal(&match below {
            Some(rest) => [&self.program, rest].concat(),
            None => join(&self.directory, name),
        })
    }

    /// A module, and its compiled part.
    fn module(&mut self, name: &[u8]) -> Vec<File> {
        let path = name.split(|byte| *byte == b':').filter(|part| !part.is_empty());
        let path = path.collect::<Vec<_>>().join(b"/".as_slice());
        let source = [&*path, b".pm"].concat();
        let compiled = [b"auto/", &*path, b"/", file_name(&path), b".so"].concat();
        [source, compiled].iter().filter_map(|path| self.searched(path)).collect()
    }

    fn searched(&mut self, path: &[u8]) -> Option<File> {
        let Self { search, listings, .. } = self;
        search.iter().find_map(|directory| listings.find_below(directory, path))
    }
}

impl Loader for PerlLoader<'_> {
    type Request = Request;

    fn found(&mut self) -> &mut FileList {
        &mut self.found
    }

    fn resolve(&mut self, request: &Request) -> Result<Vec<File>> {
        Ok(match request {
            Request::Module(name) => {
                let hidden = HIDDEN.iter().filter(|(loads, _)| loads == name).map(|(_, hidden)| *hidden);
                std::iter::once(name.as_slice()).chain(hidden).flat_map(|name| self.module(name)).collect()
            }
            Request::File(name) => {
                let found = self.searched(name);
                found.or_else(|| self.listings.find(&self.path(name))).into_iter().collect()
            }
            Request::Directory(name) => {
                if self.search.len() < SEARCHED {
                    self.search.insert(0, self.path(name));
                }
                Vec::new()
            }
        })
    }

    fn requests(&mut self, file: &File) -> Result<Vec<Request>> {
        if file.path.ends_with(b".so") {
            return Ok(Vec::new());
        }
        Ok(requests(&self.sources.read(file)?))
    }
}

/// What an option of Perl loads.
fn of_option((letter, value): (u8, &[u8])) -> Vec<Request> {
    match letter {
        b'e' => requests(value),
        b'E' => [vec![Request::Module(b"feature".to_vec())], requests(value)].concat(),
        b'I' => vec![Request::Directory(value.to_vec())],
        b'M' | b'm' => {
            let name = value.strip_prefix(b"-").unwrap_or(value);
            let name = name.split(|byte| *byte == b'=').next().unwrap_or_default();
            requests(&[b"use ", name].concat())
        }
        _ => Vec::new(),
    }
}
