//! The libraries that a Ruby program loads.

mod gems;
mod requests;
#[cfg(test)]
mod tests;

use self::gems::{Gems, Specifications};
use self::requests::{Request, requests};
use super::command::Command;
use super::directories::{self, Names};
use super::files::{File, Files, file_name, join, normal, parent};
use super::listings::Listings;
use super::loader::{FileList, Loader, load, load_script};
use super::options::Options;
use super::sources::Sources;
use crate::error::Result;

/// Directories in which libraries are searched, those that options add included.
const SEARCHED: usize = 128;
/// Names of directories with libraries: of the core, of distributions, of administrators.
const TOP: [&[u8]; 2] = [b"site_ruby", b"ruby"];
const PARTS: [&[u8]; 2] = [b"site_ruby", b"vendor_ruby"];
/// What each start loads.
const START: [&str; 7] = [
    "enc/encdb.so",
    "enc/trans/transdb.so",
    "rubygems",
    "error_highlight",
    "did_you_mean",
    "syntax_suggest/core_ext",
    "monitor",
];
/// What Ruby loads by other names than sources have.
const HIDDEN: [(&str, &[&str]); 3] = [
    ("rubygems", &["rbconfig", "rubygems/specification", "rubygems/stub_specification", "rubygems/util/list"]),
    ("did_you_mean", &["rubygems/unknown_command_spell_checker"]),
    ("bundler/setup", &["bundler/cli"]),
];
/// Options with a value: the code of `-e`, the library of `-r`, the directory of `-I`, and others.
const WITH_VALUE: &[u8] = b"erICEFX";
const WITH_REST: &[u8] = b"KTWix";
const ENDINGS: [&[u8]; 2] = [b".rb", b".so"];
/// Runs the program in its arguments with the gems of the working directory.
const BUNDLE: &[u8] = b"bundle";
const EXEC: &[u8] = b"exec";
/// Servers, and what they load in the working directory.
const SERVERS: [&[u8]; 5] = [b"puma", b"rackup", b"unicorn", b"thin", b"rails"];
const OF_SERVERS: [&[u8]; 2] = [b"config/puma.rb", b"config.ru"];
/// The gems of an application.
const GEMFILES: [&[u8]; 2] = [b"Gemfile", b"Gemfile.lock"];

/// A command that is run by Ruby.
pub(super) struct RubyCommand<'a> {
    pub(super) interpreter: &'a File,
    pub(super) arguments: &'a [Vec<u8>],
    /// The working directory.
    pub(super) directory: &'a [u8],
    /// The values of `GEM_HOME` and `GEM_PATH`, joined by a colon.
    pub(super) gems: &'a [u8],
}

/// What a program leads to.
pub(super) struct RubyStart {
    /// The files that Ruby reads, in their order. A script itself is not one of them.
    pub(super) files: Vec<File>,
    /// The command that the program runs.
    pub(super) command: Option<Command>,
}

/// The start of a program.
///
/// # Errors
/// The content of a file cannot be fetched.
pub(super) fn start(files: &dyn Files, command: &RubyCommand<'_>) -> Result<RubyStart> {
    let mut listings = Listings::of(files);
    let named = Names { top: &TOP, parts: &PARTS, is_version: gems::is_version };
    let core = directories::of_interpreter(&mut listings, &command.interpreter.path, &named);
    let gems = Gems::of(&mut listings, &core, command.gems, command.directory);
    let mut loader = RubyLoader {
        sources: Sources::of(files),
        listings,
        search: core,
        directory: command.directory.to_vec(),
        gems,
        found: FileList::default(),
    };
    let command = loader.run(command)?;
    Ok(RubyStart { files: loader.found.into_files(), command })
}

struct RubyLoader<'a> {
    sources: Sources<'a>,
    listings: Listings<'a>,
    /// Where libraries are searched, in this order: `$LOAD_PATH`.
    search: Vec<Vec<u8>>,
    /// The working directory.
    directory: Vec<u8>,
    gems: Gems,
    found: FileList,
}

impl RubyLoader<'_> {
    fn run(&mut self, command: &RubyCommand<'_>) -> Result<Option<Command>> {
        load(self, START.iter().map(|name| Request::Feature(name.as_bytes().to_vec())).collect())?;
        self.add_specifications(Specifications::Default);
        let options = Options::of(command.arguments, WITH_VALUE, WITH_REST);
        load(self, options.letters.iter().flat_map(|option| of_option(*option)).collect())?;
        let has_code = options.letters.iter().any(|(letter, _)| *letter == b'e');
        let started = self.script(&options, has_code);
        if self.gems.are_used() {
            self.add_specifications(Specifications::Installed);
        }
        started
    }

    /// The script, and what it runs.
    fn script(&mut self, options: &Options<'_>, has_code: bool) -> Result<Option<Command>> {
        let Some((script, arguments)) = options.rest.split_first().filter(|_| !has_code) else { return Ok(None) };
        let name = file_name(script);
        if let Some(script) = self.listings.find(&join(&self.directory, script)) {
            load_script(self, &script)?;
        }
        if name == BUNDLE {
            load(self, vec![Request::Feature(b"bundler/setup".to_vec()), Request::Gemfile])?;
            let command = arguments.split_first().filter(|(first, _)| *first == EXEC).map(|(_, command)| command);
            return Ok(command.map(Command::run));
        }
        if SERVERS.contains(&name) {
            load(self, OF_SERVERS.iter().map(|path| Request::File(join(&self.directory, path))).collect())?;
        }
        Ok(None)
    }

    fn add_specifications(&mut self, kind: Specifications) {
        for file in self.gems.specifications(&mut self.listings, kind) {
            self.found.add(&file);
        }
    }

    /// A library that is named without its directory and its ending. All directories are searched for a source first.
    fn feature(&mut self, name: &[u8]) -> Option<File> {
        let Self { search, listings, gems, .. } = self;
        with_endings(name, &mut |name| {
            search
                .iter()
                .find_map(|directory| listings.find_below(directory, name))
                .or_else(|| gems.find(listings, name))
        })
    }

    /// A library at a path, whose ending may be missing.
    fn at_path(&mut self, path: &[u8]) -> Option<File> {
        with_endings(path, &mut |path| self.listings.find(path))
    }

    /// What Bundler loads: the gems that the application names.
    fn gemfile(&mut self) -> Result<Vec<File>> {
        let paths = GEMFILES.map(|name| join(&self.directory, name));
        let found: Vec<File> = paths.iter().filter_map(|path| self.listings.find(path)).collect();
        let mut files = found.clone();
        if let Some(gemfile) = found.first() {
            for name in gems::named_in(&self.sources.read(gemfile)?) {
                let library = self.feature(&name);
                files.extend(library.or_else(|| self.feature(&name.iter().map(dash_to_slash).collect::<Vec<u8>>())));
            }
        }
        Ok(files)
    }
}

/// A library whose ending may be missing.
fn with_endings(name: &[u8], find: &mut dyn FnMut(&[u8]) -> Option<File>) -> Option<File> {
    if ENDINGS.iter().any(|ending| name.ends_with(ending)) {
        return find(name);
    }
    ENDINGS.iter().find_map(|ending| find(&[name, ending].concat()))
}

/// The library of the gem `a-b` is `a/b`.
fn dash_to_slash(byte: &u8) -> u8 {
    if *byte == b'-' { b'/' } else { *byte }
}

impl Loader for RubyLoader<'_> {
    type Request = Request;

    fn found(&mut self) -> &mut FileList {
        &mut self.found
    }

    fn resolve(&mut self, request: &Request) -> Result<Vec<File>> {
        Ok(match request {
            Request::Feature(name) if name.starts_with(b"/") => self.at_path(name).into_iter().collect(),
            Request::Feature(name) => {
                let others =
                    HIDDEN.iter().filter(|(loaded, _)| loaded.as_bytes() == name).flat_map(|(_, others)| *others);
                let names = std::iter::once(name.as_slice()).chain(others.map(|name| name.as_bytes()));
                names.filter_map(|name| self.feature(name)).collect()
            }
            Request::File(path) => {
                let found = self.listings.find(path);
                found.or_else(|| self.at_path(path)).into_iter().collect()
            }
            Request::Directory(path) => {
                if self.search.len() < SEARCHED {
                    self.search.insert(0, normal(&join(&self.directory, path)));
                }
                Vec::new()
            }
            Request::Program { gem, name } => self.gems.program(&mut self.listings, gem, name).into_iter().collect(),
            Request::Gemfile => self.gemfile()?,
        })
    }

    fn requests(&mut self, file: &File) -> Result<Vec<Request>> {
        if file.path.ends_with(b".so") || file.path.ends_with(b".gemspec") || file.path.ends_with(b".lock") {
            return Ok(Vec::new());
        }
        Ok(requests(&self.sources.read(file)?, parent(&file.path)))
    }
}

/// What an option of Ruby loads.
fn of_option((letter, value): (u8, &[u8])) -> Vec<Request> {
    match letter {
        b'e' => requests(value, b"/"),
        b'r' => vec![Request::Feature(value.to_vec())],
        b'I' => vec![Request::Directory(value.to_vec())],
        _ => Vec::new(),
    }
}
