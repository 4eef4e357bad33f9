//! The modules that a Python program imports.

mod imports;
mod invocation;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use self::imports::{Import, NAME, Role, called, imports, names_in_strings};
use self::invocation::{Program, named_module, program};
use super::files::{File, Files, file_name, join, parent};
use super::listings::Listings;
use super::sources::{SOURCE_BYTES, Sources, contains};
use crate::error::Result;

pub(crate) use self::invocation::{Invocation, PythonEnvironment};

/// Modules of one program. Large ones (a machine learning framework, a web framework with its plugins) import two to three thousand.
const MODULES: usize = 4096;
/// Imports that are followed or looked up in vain: thirty for each module.
const IMPORTS: usize = 1 << 17;
/// Imports that wait for others: those of a hundred modules, of which each imports hundreds.
const WAITING: usize = 1 << 16;
/// Directories in which modules are searched. `*.pth` files add few.
pub(crate) const SEARCHED: usize = 64;
/// Packages around a script.
const NESTED: usize = 16;

/// Modules that are part of the program `python3` at least since 3.11: their files are not read.
const FROZEN: [&[u8]; 17] = [
    b"abc",
    b"codecs",
    b"io",
    b"_collections_abc",
    b"_sitebuiltins",
    b"genericpath",
    b"ntpath",
    b"posixpath",
    b"os",
    b"site",
    b"stat",
    b"importlib.util",
    b"importlib.machinery",
    b"runpy",
    b"zipimport",
    b"importlib._bootstrap",
    b"importlib._bootstrap_external",
];
/// Those of them, the last ones, that are part of it in all versions.
const ALWAYS_FROZEN: usize = 3;
/// The minor version from which all of them are.
const FROZEN_SINCE: u32 = 11;
/// What each start imports.
const START: [&[u8]; 7] =
    [b"encodings", b"encodings.aliases", b"encodings.utf_8", b"io", b"os", b"site", b"_bootlocale"];
const CUSTOM: [&[u8]; 2] = [b"sitecustomize", b"usercustomize"];
/// What modules import that is not in their source: extensions, and functions that they call.
const HIDDEN: [(&[u8], &[u8]); 13] = [
    (b"_decimal", b"numbers"),
    (b"_elementtree", b"pyexpat"),
    (b"_pickle", b"copyreg"),
    (b"hashlib", b"_blake2"),
    // Versions that have it, until 3.9, also read this encoding at start.
    (b"_bootlocale", b"encodings.latin_1"),
    // Defaults of servers, which they import by name.
    (b"gunicorn.config", b"gunicorn.glogging"),
    (b"gunicorn.workers", b"gunicorn.workers.sync"),
    (b"uvicorn.config", b"uvicorn.loops.auto"),
    (b"uvicorn.config", b"uvicorn.protocols.http.auto"),
    (b"uvicorn.config", b"uvicorn.protocols.websockets.auto"),
    (b"uvicorn.config", b"uvicorn.lifespan.on"),
    (b"django.conf", b"django.conf.global_settings"),
    (b"django.conf", b"django.conf.locale.en.formats"),
];
/// What `flask run` looks for in the working directory.
const FLASK: &[u8] = b"flask.cli";
const FLASK_APPLICATIONS: [&[u8]; 2] = [b"app", b"wsgi"];
/// The setting of Django with the names of applications.
const APPLICATIONS: &[u8] = b"INSTALLED_APPS";
/// What Django imports of each application; `base` is that of a database.
const OF_APPLICATION: [&[u8]; 4] = [b"apps", b"models", b"admin", b"base"];
/// The script of a Django project, and where the commands are that are its first argument.
const MANAGE: &[u8] = b"manage.py";
const COMMANDS: &[u8] = b"django.core.management.commands.";
/// Directories of installed packages, which may be below that of the application.
const INSTALLED: [&[u8]; 2] = [b"/site-packages/", b"/dist-packages/"];

/// The files that an interpreter reads when it starts and runs its program, in the order of their imports. A script itself is not one of
/// them.
///
/// # Errors
/// The content of a file cannot be fetched.
pub(super) fn modules(files: &dyn Files, invocation: &Invocation<'_>) -> Result<Vec<File>> {
    let Invocation { interpreter, invoked_as, .. } = invocation;
    let mut listings = Listings::of(files);
    let prefix = parent(parent(&interpreter.path));
    let Some(minor) = minor_version(&mut listings, &interpreter.path) else { return Ok(Vec::new()) };
    let mut loader = Loader::new(files, listings, minor);
    invocation.environment.path.iter().for_each(|directory| loader.search_in(directory.clone()));
    loader.start(prefix, parent(parent(invoked_as)))?;
    loader.run(invocation)?;
    Ok(loader.read)
}

/// X of Python 3.X.
fn minor_version(listings: &mut Listings<'_>, interpreter: &[u8]) -> Option<u32> {
    let of = |name: &[u8]| -> Option<u32> {
        let rest = name.strip_prefix(b"python3.")?;
        let digits: Vec<u8> = rest.iter().copied().take_while(u8::is_ascii_digit).collect();
        std::str::from_utf8(&digits).ok()?.parse().ok()
    };
    of(file_name(interpreter)).or_else(|| {
        let names = listings.names(&join(parent(parent(interpreter)), b"lib"))?;
        names.iter().filter_map(|name| of(name)).max()
    })
}

/// An absolute name of a module to import.
struct Request {
    name: Vec<u8>,
    /// It is imported only if one of these could not be.
    instead_of: Rc<[Vec<u8>]>,
}

impl Request {
    fn of(name: &[u8]) -> Self {
        Self { name: name.to_vec(), instead_of: Rc::new([]) }
    }
}

/// Where a module is.
#[derive(Default)]
struct Module {
    /// What has its submodules. None: it is not a package.
    directories: Vec<Vec<u8>>,
    source: Option<File>,
    /// The file that the interpreter reads.
    read: Option<File>,
}

struct Loader<'a> {
    sources: Sources<'a>,
    listings: Listings<'a>,
    minor: u32,
    /// Where modules are searched, in this order.
    search: Vec<Vec<u8>>,
    /// The directories of the application, whose sources name modules in strings.
    application: Vec<Vec<u8>>,
    /// The directories of each module that was searched. None: it was not found.
    modules: HashMap<Vec<u8>, Option<Vec<Vec<u8>>>>,
    read: Vec<File>,
    paths: HashSet<Vec<u8>>,
    imports: usize,
    found: usize,
}

impl<'a> Loader<'a> {
    fn new(files: &'a dyn Files, listings: Listings<'a>, minor: u32) -> Self {
        Self {
            sources: Sources::of(files),
            listings,
            minor,
            search: Vec::new(),
            application: Vec::new(),
            modules: HashMap::new(),
            read: Vec::new(),
            paths: HashSet::new(),
            imports: 0,
            found: 0,
        }
    }

    /// The start of the interpreter of a prefix, which may be called from a virtual environment.
    fn start(&mut self, prefix: &[u8], environment: &[u8]) -> Result<()> {
        let version = format!("python3.{}", self.minor).into_bytes();
        let below = |base: &[u8], library: &[u8], rest: &[u8]| [base, b"/", library, b"/", &*version, rest].concat();
        // Fedora has 64-bit modules in `lib64`.
        for library in [b"lib".as_slice(), b"lib64"] {
            self.search_in(below(prefix, library, b""));
            self.search_in(below(prefix, library, b"/lib-dynload"));
        }
        let mut sites = Vec::new();
        let mut has_system_sites = true;
        if let Some(config) = self.listings.find(&join(environment, b"pyvenv.cfg")) {
            let text = self.sources.read(&config)?;
            let words: Vec<u8> = text.iter().copied().filter(|byte| *byte != b' ').collect();
            has_system_sites = words
                .split(|byte| *byte == b'\n')
                .any(|line| line.trim_ascii() == b"include-system-site-packages=true");
            self.add(config);
            sites.push(below(environment, b"lib", b"/site-packages"));
        }
        if has_system_sites {
            sites.push(below(b"/root/.local", b"lib", b"/site-packages"));
            // Debian's interpreter, in `/usr`, reads also what `pip` installed in `/usr/local`.
            sites.push(below(&join(prefix, b"local"), b"lib", b"/dist-packages"));
            sites.push(below(prefix, b"lib", b"/site-packages"));
            sites.push(below(prefix, b"lib64", b"/site-packages"));
            sites.push(join(prefix, b"lib/python3/dist-packages"));
        }
        self.import(START.into_iter().map(Request::of).collect())?;
        for site in sites {
            self.site(&site)?;
        }
        self.import(CUSTOM.into_iter().map(Request::of).collect())
    }

    /// A directory of installed packages, and what its `*.pth` files add.
    fn site(&mut self, site: &[u8]) -> Result<()> {
        let Some(names) = self.listings.names(site) else { return Ok(()) };
        self.search_in(site.to_vec());
        for name in names.iter().filter(|name| name.ends_with(b".pth")) {
            let Some(file) = self.listings.find(&join(site, name)) else { continue };
            let text = self.sources.read(&file)?;
            self.add(file);
            for line in text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
                if line.starts_with(b"import ") || line.starts_with(b"import\t") {
                    let requests = requests(&imports(line, Role::Module), b"");
                    self.import(requests)?;
                } else if !line.is_empty() && !line.starts_with(b"#") {
                    self.search_in(join(site, line));
                }
            }
        }
        Ok(())
    }

    /// The program, and the modules that it is given by name.
    fn run(&mut self, invocation: &Invocation<'_>) -> Result<()> {
        let Invocation { directory, environment, .. } = *invocation;
        let (program, arguments) = program(invocation.arguments);
        match program {
            Program::None => return Ok(()),
            Program::Script(path) => {
                let path = join(directory, path);
                let script = self.listings.find(&path).or_else(|| self.listings.find(&join(&path, b"__main__.py")));
                let Some(script) = script else { return Ok(()) };
                self.begin(parent(&script.path));
                self.script(&script)?;
                if let Some(command) = arguments.first().filter(|_| file_name(&script.path) == MANAGE) {
                    self.import(vec![Request::of(&[COMMANDS, command].concat())])?;
                }
            }
            Program::Module(name) => {
                self.begin(directory);
                self.module(name)?;
            }
            Program::Code(text) if text.len() as u64 > SOURCE_BYTES => return Ok(()),
            Program::Code(text) => {
                self.begin(directory);
                self.import(requests(&imports(text, Role::Script), b""))?;
            }
        }
        // Servers search the working directory too.
        self.begin(directory);
        let mut named: Vec<&[u8]> =
            arguments.iter().chain(&environment.modules).filter_map(|word| named_module(word)).collect();
        if self.modules.contains_key(FLASK) {
            named.extend(FLASK_APPLICATIONS);
        }
        let roots: Vec<&[u8]> = [directory].into_iter().chain(environment.path.iter().map(Vec::as_slice)).collect();
        for name in named {
            let first = name.split(|byte| *byte == b'.').next().unwrap_or_default();
            let source = [first, b".py"].concat();
            if roots.iter().any(|root| self.listings.has(root, first) || self.listings.has(root, &source)) {
                self.import(vec![Request::of(name)])?;
            }
        }
        Ok(())
    }

    /// Searches a directory first, and takes its sources for those of the application.
    fn begin(&mut self, directory: &[u8]) {
        if !self.application.iter().any(|known| known == directory) {
            self.application.push(directory.to_vec());
        }
        if self.search.first().is_none_or(|first| first != directory) {
            self.search.insert(0, directory.to_vec());
            // What ran before looked for modules elsewhere.
            self.modules.retain(|_, module| module.is_some());
        }
    }

    /// The imports of a script.
    fn script(&mut self, script: &File) -> Result<()> {
        let directory = parent(&script.path);
        let (root, package) = self.package_around(directory);
        if root != directory {
            self.search.insert(1, root.to_vec());
        }
        let mut first = Vec::new();
        if file_name(&script.path) == b"__main__.py" {
            first.extend([b"runpy".as_slice(), &package].map(Request::of));
        }
        let source = self.sources.read(script)?;
        first.extend(requests(&imports(&source, Role::Script), &package));
        let own: Vec<Vec<u8>> = first.iter().map(|request| request.name.clone()).collect();
        first.extend(self.named_in(&script.path, &source));
        self.import(first)?;
        let called = called(&source, Role::Script);
        own.iter().try_for_each(|name| self.follow(name, &called))
    }

    /// The imports of a function that was imported by this name, if it is called: the programs of packages are one line that calls `main`.
    fn follow(&mut self, name: &[u8], called: &HashSet<Vec<u8>>) -> Result<()> {
        let Some((module, function)) = rsplit_dot(name).filter(|(_, function)| called.contains(*function)) else {
            return Ok(());
        };
        self.import_as(module, Role::Called(function))
    }

    /// The imports of a module that is loaded, if its source runs in this way.
    fn import_as(&mut self, name: &[u8], role: Role<'_>) -> Result<()> {
        let Some(Some(directories)) = self.modules.get(name) else { return Ok(()) };
        let package = package_of(name, !directories.is_empty());
        let Some(source) = self.find(name).and_then(|module| module.source) else { return Ok(()) };
        let source = self.sources.read(&source)?;
        self.import(requests(&imports(&source, role), package))
    }

    /// The imports of a module that runs as the program.
    fn module(&mut self, name: &[u8]) -> Result<()> {
        self.import([b"runpy".as_slice(), name].map(Request::of).into())?;
        let is_package = self.modules.get(name).cloned().flatten().is_some_and(|directories| !directories.is_empty());
        let main = if is_package { [name, b".__main__"].concat() } else { name.to_vec() };
        self.import(vec![Request::of(&main)])?;
        self.import_as(&main, Role::Script)
    }

    /// The modules that a source of the application names in strings.
    fn named_in(&self, path: &[u8], source: &[u8]) -> Vec<Request> {
        let is_below = |directory: &Vec<u8>| {
            directory.len() > 1 && path.strip_prefix(directory.as_slice()).is_some_and(|rest| rest.starts_with(b"/"))
        };
        let is_installed = INSTALLED.iter().any(|part| contains(path, part));
        if is_installed || !self.application.iter().any(is_below) {
            return Vec::new();
        }
        let has_applications = contains(source, APPLICATIONS);
        let mut found = Vec::new();
        for name in names_in_strings(source) {
            if has_applications {
                found.push(Request::of(&name));
                found.extend(OF_APPLICATION.map(|part| Request::of(&[&name, b".".as_slice(), part].concat())));
            } else if name.contains(&b'.') {
                found.push(Request::of(&name));
            }
        }
        found
    }

    /// The package that a directory is, and the directory where it is found.
    fn package_around<'d>(&mut self, directory: &'d [u8]) -> (&'d [u8], Vec<u8>) {
        let mut names = Vec::new();
        let mut root = directory;
        while names.len() < NESTED && self.listings.has(root, b"__init__.py") {
            names.push(file_name(root));
            root = parent(root);
        }
        names.reverse();
        (root, names.join(&b'.'))
    }

    /// Imports modules, each with what it imports itself before the next one, as the interpreter does.
    fn import(&mut self, mut left: Vec<Request>) -> Result<()> {
        left.reverse();
        while let Some(request) = left.pop() {
            if self.found >= MODULES || self.imports >= IMPORTS {
                break;
            }
            // Of a dotted name each beginning is a package: longer names than real ones would multiply.
            let is_long = request.name.len() > NAME;
            if is_long || self.modules.contains_key(&request.name) || self.is_needless(&request) {
                continue;
            }
            if let Some((package, _)) = rsplit_dot(&request.name)
                && !self.modules.contains_key(package)
            {
                let package = Request::of(package);
                left.extend([request, package]);
                continue;
            }
            self.imports += 1;
            let next = self.load(&request.name)?;
            if left.len() + next.len() <= WAITING {
                left.extend(next.into_iter().rev());
            }
        }
        Ok(())
    }

    /// Whether all that it stands for is there. A module with `_` that has no file is part of the interpreter.
    fn is_needless(&self, request: &Request) -> bool {
        let is_there = |name: &Vec<u8>| match self.modules.get(name) {
            Some(Some(_)) => true,
            Some(None) => name.starts_with(b"_"),
            None => false,
        };
        !request.instead_of.is_empty() && request.instead_of.iter().all(is_there)
    }

    /// Loads one module, whose package is loaded, and returns what it imports.
    fn load(&mut self, name: &[u8]) -> Result<Vec<Request>> {
        let Some(module) = self.find(name) else {
            self.modules.insert(name.to_vec(), None);
            return Ok(Vec::new());
        };
        self.found += 1;
        let package = package_of(name, !module.directories.is_empty());
        self.modules.insert(name.to_vec(), Some(module.directories));
        if let Some(read) = module.read.filter(|_| !self.is_frozen(name)) {
            self.add(read);
        }
        let Module { source: file, .. } = module;
        let source = file.as_ref().map(|source| self.sources.read(source)).transpose()?.unwrap_or_default();
        let mut next = requests(&imports(&source, Role::Module), package);
        next.extend(file.map(|file| self.named_in(&file.path, &source)).unwrap_or_default());
        next.extend(HIDDEN.iter().filter(|(by, _)| *by == name).map(|(_, hidden)| Request::of(hidden)));
        Ok(next)
    }

    /// A module whose package is loaded.
    fn find(&mut self, name: &[u8]) -> Option<Module> {
        match rsplit_dot(name) {
            Some((package, stem)) => {
                let directories = self.modules.get(package).cloned().flatten().unwrap_or_default();
                self.locate(&directories, stem)
            }
            None => {
                // Taken, not copied: it is searched for each import, and nothing is added meanwhile.
                let search = std::mem::take(&mut self.search);
                let found = self.locate(&search, name);
                self.search = search;
                found
            }
        }
    }

    fn is_frozen(&self, name: &[u8]) -> bool {
        let first = if self.minor >= FROZEN_SINCE { 0 } else { FROZEN.len() - ALWAYS_FROZEN };
        FROZEN.iter().skip(first).any(|frozen| *frozen == name)
    }

    /// A module in the first directory that has it. Directories without code are one package together.
    fn locate(&mut self, directories: &[Vec<u8>], stem: &[u8]) -> Option<Module> {
        let mut parts = Vec::new();
        for directory in directories {
            let below = self.listings.has(directory, stem).then(|| join(directory, stem));
            if let Some(below) = &below
                && let Some(module) = self.in_directory(below, b"__init__")
            {
                return Some(Module { directories: vec![below.clone()], ..module });
            }
            if let Some(module) = self.in_directory(directory, stem) {
                return Some(module);
            }
            parts.extend(below.filter(|below| self.listings.names(below).is_some()));
        }
        (!parts.is_empty()).then(|| Module { directories: parts, ..Module::default() })
    }

    /// A module of a directory: an extension, a source, or a compiled module without source.
    fn in_directory(&mut self, directory: &[u8], stem: &[u8]) -> Option<Module> {
        let names = self.listings.names(directory)?;
        // Flags may follow the version: `cpython-37m-x86_64-linux-gnu.so`.
        let tag = [stem, format!(".cpython-3{}", self.minor).as_bytes()].concat();
        let is_of_version = |name: &&Vec<u8>| {
            let rest = name.strip_prefix(tag.as_slice()).unwrap_or_default();
            rest.ends_with(b".so") && !rest.first().is_some_and(u8::is_ascii_digit)
        };
        let tagged = names.range(tag.clone()..).take_while(|name| name.starts_with(&tag)).find(is_of_version);
        let plain = [b".abi3.so".as_slice(), b".so"].map(|end| [stem, end].concat());
        if let Some(extension) = tagged.or_else(|| plain.iter().find(|name| names.contains(*name))) {
            return Some(Module { read: self.listings.find(&join(directory, extension)), ..Module::default() });
        }
        let source = [stem, b".py"].concat();
        if names.contains(&source) {
            let source = self.listings.find(&join(directory, &source));
            let cached = [b"__pycache__/", stem, format!(".cpython-3{}.pyc", self.minor).as_bytes()].concat();
            let read = self.listings.find(&join(directory, &cached)).or_else(|| source.clone());
            return Some(Module { source, read, ..Module::default() });
        }
        let compiled = [stem, b".pyc"].concat();
        let read = names.contains(&compiled).then(|| self.listings.find(&join(directory, &compiled)))?;
        Some(Module { read, ..Module::default() })
    }

    fn search_in(&mut self, directory: Vec<u8>) {
        if self.search.len() < SEARCHED
            && !self.search.contains(&directory)
            && self.listings.names(&directory).is_some()
        {
            self.search.push(directory);
        }
    }

    fn add(&mut self, file: File) {
        if self.paths.insert(file.path.clone()) {
            self.read.push(file);
        }
    }
}

/// The absolute names of what a module of a package imports.
fn requests(imports: &[Import], package: &[u8]) -> Vec<Request> {
    let request = |import: &Import| {
        let name = absolute(import.dots, &import.module, package)?;
        let instead_of = import.instead_of.iter().filter_map(|(dots, module)| absolute(*dots, module, package));
        Some(Request { name, instead_of: instead_of.collect() })
    };
    imports.iter().filter_map(request).collect()
}

/// The absolute name of a module, for an import in a module of a package.
fn absolute(dots: usize, module: &[u8], package: &[u8]) -> Option<Vec<u8>> {
    let mut package = if dots == 0 { b"" } else { package };
    for _ in 1..dots {
        package = rsplit_dot(package)?.0;
    }
    let is_outside = dots > 0 && package.is_empty();
    let parts: Vec<&[u8]> = [package, module].into_iter().filter(|part| !part.is_empty()).collect();
    let name = parts.join(&b'.');
    (!is_outside && !name.is_empty() && name.len() <= NAME).then_some(name)
}

/// The package that relative imports of a module start from.
fn package_of(name: &[u8], is_package: bool) -> &[u8] {
    if is_package { name } else { rsplit_dot(name).map_or(b"", |(package, _)| package) }
}

fn rsplit_dot(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = name.iter().rposition(|byte| *byte == b'.')?;
    Some((name.get(..at)?, name.get(at + 1..)?))
}
