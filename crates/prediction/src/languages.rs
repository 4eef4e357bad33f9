//! What the interpreters of languages read to start and to run a program.

use super::command::Command;
use super::environment::Environment;
use super::files::{File, Files, file_name};
use super::{node, perl, php, python, ruby};
use crate::error::Result;

/// A program that runs.
pub(crate) struct Execution<'a> {
    pub(crate) program: &'a File,
    /// The path by which it was called.
    pub(crate) invoked_as: &'a [u8],
    pub(crate) arguments: &'a [Vec<u8>],
    /// The files that arguments name.
    pub(crate) named: &'a [File],
    /// The working directory.
    pub(crate) directory: &'a [u8],
    pub(crate) environment: Environment<'a>,
}

/// What an interpreter does with its program.
pub(crate) struct Interpreted {
    /// The files that it reads, in their order.
    pub(crate) modules: Vec<File>,
    /// The command that the program runs.
    pub(crate) command: Option<Command>,
}

/// The start of an interpreter. None: the program is none.
///
/// # Errors
/// The content of a file cannot be fetched.
pub(crate) fn start(files: &dyn Files, execution: &Execution<'_>) -> Result<Option<Interpreted>> {
    let Execution { program, invoked_as, arguments, named, directory, environment } = *execution;
    let (name, binary) = (file_name(invoked_as), file_name(&program.path));
    let is_named = |language: &[u8]| name.starts_with(language) || binary.starts_with(language);
    let modules = if is_named(b"python") {
        let environment = &python::PythonEnvironment::of(environment, python::SEARCHED);
        let invocation = python::Invocation { interpreter: program, invoked_as, arguments, directory, environment };
        python::modules(files, &invocation)?
    } else if matches!(name, b"node" | b"nodejs") {
        node::modules(files, named.first())?
    } else if is_named(b"perl") {
        let library = environment.bytes("PERL5LIB");
        perl::modules(files, &perl::PerlCommand { interpreter: program, arguments, directory, library })?
    } else if is_named(b"ruby") {
        let gems = ["GEM_HOME", "GEM_PATH"].map(|name| environment.bytes(name)).join(b":".as_slice());
        let command = ruby::RubyCommand { interpreter: program, arguments, directory, gems: &gems };
        let started = ruby::start(files, &command)?;
        return Ok(Some(Interpreted { modules: started.files, command: started.command }));
    } else if php::is_interpreter(binary) {
        php::modules(files, &php::PhpCommand { interpreter: program, arguments, directory })?
    } else {
        return Ok(None);
    };
    Ok(Some(Interpreted { modules, command: None }))
}
