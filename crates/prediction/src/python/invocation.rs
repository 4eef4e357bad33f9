//! What an interpreter is asked to run, and the modules that its program is given by name: `gunicorn app:app`, `celery -A project`.

use super::super::environment::Environment;
use super::super::files::File;
use super::imports::{NAME, is_dotted_name};

/// Options of the interpreter that have a value, in the same word or the next one.
const WITH_VALUE: &[u8] = b"cmWX";
const LONG_WITH_VALUE: &[u8] = b"--check-hash-based-pycs";
/// Ends of the names of environment variables that name modules: `FLASK_APP`, `DJANGO_SETTINGS_MODULE`, `APP_MODULE`.
const NAMES_MODULE: [&str; 2] = ["_APP", "_MODULE"];
/// Values of such variables that are used.
const VARIABLES: usize = 16;

/// A command that is run by an interpreter.
pub(crate) struct Invocation<'a> {
    pub(crate) interpreter: &'a File,
    /// The path by which the interpreter was called, which leads to its virtual environment.
    pub(crate) invoked_as: &'a [u8],
    pub(crate) arguments: &'a [Vec<u8>],
    /// The working directory.
    pub(crate) directory: &'a [u8],
    pub(crate) environment: &'a PythonEnvironment,
}

/// What environment variables contribute.
#[derive(Debug, Default)]
pub(crate) struct PythonEnvironment {
    /// The directories of `PYTHONPATH`.
    pub(super) path: Vec<Vec<u8>>,
    /// Names of modules, as in arguments.
    pub(super) modules: Vec<Vec<u8>>,
}

impl PythonEnvironment {
    /// At most `directories` directories are used.
    pub(crate) fn of(variables: Environment<'_>, directories: usize) -> Self {
        let mut environment = Self::default();
        for (name, value) in variables.variables() {
            if name == "PYTHONPATH" {
                let path = value.split(':').filter(|directory| directory.starts_with('/')).take(directories);
                environment.path = path.map(|directory| directory.as_bytes().to_vec()).collect();
            } else if NAMES_MODULE.iter().any(|end| name.ends_with(end)) && environment.modules.len() < VARIABLES {
                environment.modules.push(value.as_bytes().to_vec());
            }
        }
        environment
    }
}

/// What is run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Program<'a> {
    /// A dialogue, or standard input.
    None,
    /// A file or a directory.
    Script(&'a [u8]),
    /// `-m`
    Module(&'a [u8]),
    /// `-c`
    Code(&'a [u8]),
}

/// The program in the arguments of an interpreter, and the arguments of the program.
pub(super) fn program(arguments: &[Vec<u8>]) -> (Program<'_>, &[Vec<u8>]) {
    let mut rest = arguments;
    while let Some((word, after)) = rest.split_first() {
        rest = after;
        let Some(letters) = word.strip_prefix(b"-") else { return (Program::Script(word), rest) };
        if letters.is_empty() {
            break;
        }
        let option =
            letters.iter().position(|letter| WITH_VALUE.contains(letter)).filter(|_| !letters.starts_with(b"-"));
        let joined = option.and_then(|at| letters.get(at + 1..)).filter(|joined| !joined.is_empty());
        let has_value = option.is_some() || word == LONG_WITH_VALUE;
        let value = match joined {
            Some(joined) => joined,
            None if has_value => {
                let Some((value, after)) = rest.split_first() else { break };
                rest = after;
                value
            }
            None => continue,
        };
        match option.and_then(|at| letters.get(at)) {
            Some(b'c') => return (Program::Code(value), rest),
            Some(b'm') => return (Program::Module(value), rest),
            _ => {}
        }
    }
    (Program::None, rest)
}

/// The module that an argument or a variable names: `app`, `web.app:create()`, `--app=web`.
pub(super) fn named_module(word: &[u8]) -> Option<&[u8]> {
    let value = word.rsplit(|byte| *byte == b'=').next()?;
    let name = value.split(|byte| *byte == b':').next()?;
    (name.len() <= NAME && is_dotted_name(name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn the_program_follows_the_options_of_the_interpreter() {
        for (line, expected, arguments) in [
            ("app.py -m x", Program::Script(b"app.py"), "-m x"),
            ("-u -X dev -W ignore app.py x", Program::Script(b"app.py"), "x"),
            ("-Wignore -Xdev /app run", Program::Script(b"/app"), "run"),
            ("-um web.app --port 1", Program::Module(b"web.app"), "--port 1"),
            ("-mweb x", Program::Module(b"web"), "x"),
            ("--check-hash-based-pycs never -c import", Program::Code(b"import"), ""),
        ] {
            let words = words(line);
            let (program, rest) = program(&words);
            assert_eq!((program, rest.join(&b' ')), (expected, arguments.as_bytes().to_vec()), "{line}");
        }
        for line in ["-", "-i", "-m", "-X dev"] {
            assert_eq!(program(&words(line)).0, Program::None, "{line}");
        }
    }

    #[test]
    fn servers_take_modules_by_name() {
        for (word, expected) in [
            ("app", Some("app")),
            ("web.app:create()", Some("web.app")),
            ("--app=web:app", Some("web")),
            ("-A", None),
            ("0.0.0.0:80", None),
            (":app", None),
            ("a/b.py", None),
            ("a..b", None),
        ] {
            assert_eq!(named_module(word.as_bytes()), expected.map(str::as_bytes), "{word}");
        }
    }

    #[test]
    fn the_environment_has_directories_and_names_of_modules() {
        let variables = ["PYTHONPATH=/src:relative:/lib", "FLASK_APP=web", "HOME=/", "APP_MODULE=main:app", "_APP"];
        let found = PythonEnvironment::of(Environment(&variables.map(str::to_owned)), 8);
        assert_eq!(found.path, [b"/src".to_vec(), b"/lib".to_vec()]);
        assert_eq!(found.modules, [b"web".to_vec(), b"main:app".to_vec()]);
    }
}
