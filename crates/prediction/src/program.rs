//! What the start of a command reads: programs, their libraries, scripts, files that arguments name.

use std::collections::HashSet;
use std::ops::Range;

use tarpon_layer::ObjectId;
use tarpon_oci::{RunConfig, limits};

use super::command::Command;
use super::environment::Environment;
use super::files::{File, Files, Piece, file_name, join, normal};
use super::languages::Execution;
use super::libraries::{Libraries, Loaded};
use super::{configuration, java, languages, locale, php, shell};
use crate::error::Result;

/// Decoded bytes of a prediction. Six recorded starts read 6 to 32 MB; what is predicted needlessly delays the rest.
const BYTES: u64 = 64 << 20;
/// Bytes of a program that is read whole. Of Redis, nginx, Python and Node.js (47 MB) a start reads about half, in pages everywhere, for which
/// spans of gzip layers would bring nearly all of it.
const PROGRAM_BYTES: u64 = 48 << 20;
/// Bytes of a module that is no library: larger ones are data.
const MODULE_BYTES: u64 = 16 << 20;
/// Commands that lead to each other: Linux follows four `#!` lines, and entry points call one or two further scripts.
const DEPTH: usize = 6;
/// Commands of one start that name programs. Entry points name up to about twenty, among hundreds of other words.
const COMMANDS: usize = 128;
/// A program that a script merely names may never run: only a small one is predicted.
const NAMED_PROGRAM_BYTES: u64 = 1 << 20;
/// Bytes of a file that an argument names, such as a configuration.
const ARGUMENT_BYTES: u64 = 1 << 20;
/// Bytes of a `#!` line, of which Linux reads 256.
const SCRIPT_LINE_BYTES: u64 = 256;
/// The `PATH` of a container without one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Directories of a `PATH`. Those of images have about six.
const PATH_DIRECTORIES: usize = 64;
/// What the runtime reads before it starts the command.
const RUNTIME: [&[u8]; 2] = [b"/etc/passwd", b"/etc/group"];
/// What the C library and the commonest libraries read.
const LIBRARY: [&[u8]; 5] = [
    b"/etc/ld.so.cache",
    b"/etc/nsswitch.conf",
    b"/etc/localtime",
    b"/etc/ssl/openssl.cnf",
    b"/usr/lib/ssl/openssl.cnf",
];

/// The files and ranges of a start, in the order in which they are read.
pub(crate) struct Prediction<'a> {
    files: &'a dyn Files,
    libraries: Libraries<'a>,
    path: Vec<Vec<u8>>,
    directory: Vec<u8>,
    environment: Environment<'a>,
    pieces: Vec<Piece>,
    seen: HashSet<ObjectId>,
    bytes: u64,
}

impl<'a> Prediction<'a> {
    /// Of a container with this configuration.
    ///
    /// # Errors
    /// A configuration file of the dynamic linker cannot be read.
    pub(crate) fn new(files: &'a dyn Files, config: &'a RunConfig) -> Result<Self> {
        let environment = Environment(&config.env);
        let path = environment.get("PATH").unwrap_or(DEFAULT_PATH).split(':');
        let path = path.filter(|name| !name.is_empty() && name.len() <= limits::PATH_BYTES);
        let directory = Some(config.working_dir.as_bytes()).filter(|path| path.len() <= limits::PATH_BYTES);
        Ok(Self {
            files,
            libraries: Libraries::of(files, environment.bytes("LD_LIBRARY_PATH"))?,
            path: path.take(PATH_DIRECTORIES).map(|name| name.as_bytes().to_vec()).collect(),
            directory: normal(directory.unwrap_or_default()),
            environment,
            pieces: Vec::new(),
            seen: HashSet::new(),
            bytes: 0,
        })
    }

    /// Finds what the start of a command reads.
    ///
    /// # Errors
    /// The content of a file cannot be read.
    pub(crate) fn follow(&mut self, command: &[String]) -> Result<()> {
        RUNTIME.iter().for_each(|path| self.add_path(path));
        let words: Vec<Vec<u8>> = command.iter().map(|word| word.as_bytes().to_vec()).collect();
        // What is left to do, the next one last, each with the number of commands that led to it.
        let mut left = vec![(Command::run(&words), 0)];
        let mut done = 0;
        while let Some((command, depth)) = left.pop().filter(|_| done < COMMANDS) {
            if depth < DEPTH
                && let Some(found) = self.command(&command)?
            {
                left.extend(found.into_iter().rev().map(|command| (command, depth + 1)));
                done += 1;
            }
        }
        LIBRARY.iter().for_each(|path| self.add_path(path));
        locale::files(self.files, self.environment).iter().for_each(|file| self.add_file(file));
        Ok(())
    }

    /// What was found.
    pub(crate) fn pieces(self) -> Vec<Piece> {
        self.pieces
    }

    /// Adds what a command reads itself, and returns the commands that it runs or names. None: it names no program.
    fn command(&mut self, command: &Command) -> Result<Option<Vec<Command>>> {
        let Some((name, arguments)) = command.words.split_first() else { return Ok(None) };
        let Some((invoked_as, program)) = self.program(name) else { return Ok(None) };
        if !command.runs && program.size > NAMED_PROGRAM_BYTES {
            return Ok(Some(Vec::new()));
        }
        if let Some(interpreter) = self.interpreter(&program)? {
            self.add_file(&program);
            let words = [interpreter, vec![program.path], arguments.to_vec()].concat();
            return Ok(Some(vec![Command { words, runs: command.runs }]));
        }
        self.add_program(&program)?;
        // A script that names a launcher runs it in the end, by words that variables have.
        if !command.runs && !java::is_launcher(file_name(&invoked_as)) {
            return Ok(Some(Vec::new()));
        }
        let named = self.add_arguments(arguments);
        self.run(&invoked_as, &program, arguments, &named).map(Some)
    }

    /// Adds what a program of a known kind reads, and returns the commands that it runs.
    fn run(&mut self, invoked_as: &[u8], program: &File, words: &[Vec<u8>], named: &[File]) -> Result<Vec<Command>> {
        let name = file_name(invoked_as);
        let execution = Execution {
            program,
            invoked_as,
            arguments: words,
            named,
            directory: &self.directory,
            environment: self.environment,
        };
        if let Some(started) = languages::start(self.files, &execution)? {
            self.add_modules(&started.modules)?;
            return Ok(started.command.into_iter().collect());
        }
        if java::is_launcher(name) {
            let class_path = self.environment.bytes("CLASSPATH");
            let start = java::start(self.files, program, words, class_path, &self.directory)?;
            for library in &start.libraries {
                let is_it = |file: &File| file.object == library.object && file.size <= PROGRAM_BYTES;
                self.add_loaded(library, &|loaded| match is_it(&loaded.file) {
                    true => library.whole(),
                    false => loaded.elf.touched(loaded.file.size),
                })?;
            }
            start.parts.into_iter().for_each(|(file, parts)| self.add(&file, parts));
        } else if shell::is_shell(name) {
            return shell::commands(self.files, words, named);
        } else if shell::is_wrapper(name) {
            let is_program = |word: &&[u8]| self.program(word).is_some();
            return Ok(shell::wrapped(words, &is_program).into_iter().collect());
        } else {
            let modules = configuration::read(self.files, name)?;
            self.add_modules(&modules)?;
            // A web server that runs PHP itself.
            if let Some(interpreter) = modules.iter().find(|module| php::is_module(file_name(&module.path))) {
                let command = php::PhpCommand { interpreter, arguments: &[], directory: &self.directory };
                let modules = php::modules(self.files, &command)?;
                self.add_modules(&modules)?;
            }
        }
        Ok(Vec::new())
    }

    /// The words of the `#!` line of a script.
    fn interpreter(&self, program: &File) -> Result<Option<Vec<Vec<u8>>>> {
        let head = self.files.read(program, 0..SCRIPT_LINE_BYTES)?;
        Ok(head.strip_prefix(b"#!").map(shell::interpreter).filter(|words| !words.is_empty()))
    }

    /// A program and its libraries.
    fn add_program(&mut self, program: &File) -> Result<()> {
        // The code of a small launcher is in a library of its name: `python3` and `libpython3.11.so`.
        let name: Vec<u8> = file_name(&program.path).iter().copied().take_while(u8::is_ascii_alphabetic).collect();
        let is_main = |file: &File| {
            let stem = file_name(&file.path).strip_prefix(b"lib").unwrap_or_default();
            file.object == program.object || name.len() > 2 && stem.starts_with(&name)
        };
        self.add_loaded(program, &|Loaded { file, elf }| {
            if is_main(file) && file.size <= PROGRAM_BYTES { file.whole() } else { elf.touched(file.size) }
        })
    }

    /// Files that a program reads whole, and libraries that it loads, with those that they need.
    fn add_modules(&mut self, modules: &[File]) -> Result<()> {
        let touched = |loaded: &Loaded| loaded.elf.touched(loaded.file.size);
        modules.iter().try_for_each(|module| self.add_loaded(module, &touched))
    }

    /// A file, and what is loaded with it if it is an ELF file: of each these parts.
    fn add_loaded(&mut self, file: &File, parts: &dyn Fn(&Loaded) -> Vec<Range<u64>>) -> Result<()> {
        let Some(loaded) = Loaded::read(self.files, file.clone())? else {
            if file.size <= MODULE_BYTES {
                self.add_file(file);
            }
            return Ok(());
        };
        for loaded in self.libraries.loaded_with(loaded)? {
            self.add(&loaded.file, parts(&loaded));
        }
        Ok(())
    }

    /// Adds the files that arguments name, and returns them.
    fn add_arguments(&mut self, arguments: &[Vec<u8>]) -> Vec<File> {
        let named = arguments.iter().filter(|word| !word.is_empty() && !word.starts_with(b"-"));
        let found: Vec<File> = named.filter_map(|word| self.files.find(&join(&self.directory, word))).collect();
        found.iter().filter(|file| file.size <= ARGUMENT_BYTES).for_each(|file| self.add_file(file));
        found
    }

    /// The path by which the program of this name is called, and the program.
    fn program(&self, name: &[u8]) -> Option<(Vec<u8>, File)> {
        let at = |path: Vec<u8>| {
            let file = self.files.find(&path).filter(|file| file.is_executable)?;
            Some((path, file))
        };
        if name.contains(&b'/') {
            return at(join(&self.directory, name));
        }
        self.path.iter().find_map(|directory| at(join(directory, name)))
    }

    fn add_path(&mut self, path: &[u8]) {
        if let Some(file) = self.files.find(path) {
            self.add_file(&file);
        }
    }

    fn add_file(&mut self, file: &File) {
        self.add(file, file.whole());
    }

    fn add(&mut self, file: &File, ranges: Vec<Range<u64>>) {
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        if self.bytes.saturating_add(bytes) <= BYTES && self.seen.insert(file.object) {
            self.bytes += bytes;
            self.pieces.extend(ranges.into_iter().map(|range| (file.object, range)));
        }
    }
}

#[cfg(test)]
mod tests {
    use tarpon_oci::Digest;

    use super::*;
    use crate::files::tests::MapFiles;

    /// The paths of what the start of an image with this command reads, in order.
    fn predicted(files: &MapFiles, entrypoint: &[&str], command: &[&str], directory: &str) -> Vec<String> {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let config = RunConfig {
            entrypoint: owned(entrypoint),
            cmd: owned(command),
            working_dir: directory.to_owned(),
            ..RunConfig::default()
        };
        let pieces = crate::predict_in(files, &config).unwrap();
        let name = |object: &ObjectId| {
            let path = files.0.keys().find(|path| Digest::of(path) == *object).unwrap();
            String::from_utf8(path.clone()).unwrap()
        };
        pieces.iter().map(|(object, _)| name(object)).collect()
    }

    #[test]
    fn an_entry_point_leads_to_its_interpreter_and_the_programs_that_it_names() {
        let script =
            "#!/bin/sh\n# find is only mentioned\nset -e\nif [ \"$(id -u)\" = 0 ]; then chown app .; fi\nexec \"$@\"\n";
        let files = MapFiles::default()
            .with("/usr/local/bin/entry.sh", script)
            .with("/bin/sh", "a shell")
            .with("/usr/bin/id", "a program")
            .with("/usr/bin/chown", "a program")
            .with("/usr/bin/find", "a program")
            .with("/usr/bin/other", "a program")
            .with("/usr/sbin/server", "a program")
            .with("/data/server.conf", "a configuration");
        let found = predicted(&files, &["entry.sh"], &["server", "server.conf"], "/data");
        let expected = [
            "/usr/local/bin/entry.sh",
            "/bin/sh",
            "/usr/bin/id",
            "/usr/bin/chown",
            "/usr/sbin/server",
            "/data/server.conf",
        ];
        let mut sorted = (found.clone(), expected.map(str::to_owned).to_vec());
        sorted.0.sort();
        sorted.1.sort();
        assert_eq!(sorted.0, sorted.1, "{found:?}");
        assert_eq!(found[0], "/usr/local/bin/entry.sh");
    }

    #[test]
    fn an_entry_point_of_many_words_leads_to_the_command_that_it_runs_last() {
        let words: String = (0..2 * COMMANDS).map(|number| format!("function_{number}\n")).collect();
        let files = MapFiles::default()
            .with("/entry.sh", format!("#!/bin/sh\n{words}exec \"$@\"\n"))
            .with("/bin/sh", "a shell")
            .with("/usr/sbin/server", vec![b'x'; 2 << 20]);
        let found = predicted(&files, &["/entry.sh"], &["server"], "/");
        assert!(found.iter().any(|path| path == "/usr/sbin/server"), "{found:?}");
    }

    #[test]
    fn a_web_server_that_loads_php_reads_its_configuration_and_the_first_page() {
        let files = MapFiles::default()
            .with("/usr/sbin/apache2", "a program")
            .with("/etc/apache2/mods-enabled/php.load", "LoadModule php_module /usr/lib/apache2/modules/libphp.so\n")
            .with("/usr/lib/apache2/modules/libphp.so", "a library")
            .with("/usr/local/etc/php/conf.d/a.ini", "extension=a\n")
            .with("/usr/local/lib/php/extensions/x/a.so", "a library")
            .with("/var/www/html/index.php", "<?php\n");
        let found = predicted(&files, &[], &["apache2", "-DFOREGROUND"], "/var/www/html");
        assert_eq!(
            found,
            [
                "/usr/sbin/apache2",
                "/etc/apache2/mods-enabled/php.load",
                "/usr/lib/apache2/modules/libphp.so",
                "/usr/local/etc/php/conf.d/a.ini",
                "/usr/local/lib/php/extensions/x/a.so",
                "/var/www/html/index.php",
            ]
        );
    }

    #[test]
    fn programs_of_ruby_that_run_others_lead_to_them() {
        let files = MapFiles::default()
            .with("/usr/local/bin/ruby", "a program")
            .with("/usr/local/bin/bundle", "#!/usr/bin/env ruby\nrequire 'rubygems'\n")
            .with("/usr/bin/env", "a program")
            .with("/usr/local/bin/serve", "a program");
        let found = predicted(&files, &[], &["bundle", "exec", "serve"], "/app");
        assert!(found.iter().any(|path| path == "/usr/local/bin/serve"), "{found:?}");
    }
}
