//! The commands in scripts of a shell, in `#!` lines, and in the arguments of programs that run a command.
//!
//! A script is not parsed: its words that are names of programs count. That is enough for entry points, which check, change owners and then
//! run their arguments.

use std::collections::HashSet;

use super::command::Command;
use super::files::{File, Files};
use crate::error::Result;

/// Bytes of a script whose words are read: longer ones are programs of their own.
const SCRIPT_BYTES: u64 = 64 << 10;
/// Commands of a script, which runs few programs.
const STATEMENTS: usize = 1024;
/// Words of a script.
const WORDS: usize = 4096;
const SHELLS: [&[u8]; 5] = [b"sh", b"bash", b"dash", b"ash", b"busybox"];
/// Programs that run the command in their arguments.
const WRAPPERS: [&[u8]; 15] = [
    b"env",
    b"tini",
    b"tini-static",
    b"dumb-init",
    b"catatonit",
    b"gosu",
    b"su-exec",
    b"setpriv",
    b"chroot",
    b"nice",
    b"ionice",
    b"timeout",
    b"nohup",
    b"stdbuf",
    b"sudo",
];
/// The end of a path that begins with a variable: `"$JAVA_HOME/bin/java"`.
const BIN: &[u8] = b"/bin/";
/// Words before a command.
const BEFORE: [&[u8]; 5] = [b"then", b"else", b"do", b"{", b"("];
/// Commands of the shell itself, although programs have these names too.
const BUILT_IN: [&[u8]; 9] = [b"echo", b"printf", b"test", b"[", b"true", b"false", b"kill", b"pwd", b"time"];

pub(crate) fn is_shell(name: &[u8]) -> bool {
    SHELLS.contains(&name)
}

pub(crate) fn is_wrapper(name: &[u8]) -> bool {
    WRAPPERS.contains(&name)
}

/// The words of a `#!` line, without these two characters. As in Linux there is one argument; `env -S` splits it.
pub(crate) fn interpreter(line: &[u8]) -> Vec<Vec<u8>> {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let (program, argument) = match line.iter().position(u8::is_ascii_whitespace) {
        Some(at) => line.split_at(at),
        None => (line, &[][..]),
    };
    let argument = argument.trim_ascii();
    let arguments = match argument.strip_prefix(b"-S") {
        Some(text) => text.split(u8::is_ascii_whitespace).collect(),
        None => vec![argument],
    };
    let words = [program].into_iter().chain(arguments).filter(|word| !word.is_empty());
    words.map(<[u8]>::to_vec).collect()
}

/// The command in the arguments of a program that runs it: from the first word on that is the name of a program.
pub(crate) fn wrapped(words: &[Vec<u8>], is_program: &dyn Fn(&&[u8]) -> bool) -> Option<Command> {
    let is_it = |word: &Vec<u8>| !word.starts_with(b"-") && !word.contains(&b'=') && is_program(&word.as_slice());
    let at = words.iter().position(is_it)?;
    words.get(at..).map(Command::run)
}

/// The commands that a shell runs or names, by its arguments: those of `-c`, or of a script, whose own arguments most entry points run in
/// the end. `named`: the files among the arguments.
///
/// # Errors
/// The script cannot be read.
pub(crate) fn commands(files: &dyn Files, arguments: &[Vec<u8>], named: &[File]) -> Result<Vec<Command>> {
    if let [option, text, ..] = arguments
        && option.starts_with(b"-")
        && option.ends_with(b"c")
    {
        let statements = statements(text);
        let executed = executed(&statements);
        let run = executed.as_ref().map_or(&*statements, std::slice::from_ref);
        return Ok(run.iter().map(|words| Command::run(words)).chain(named_in(text)).collect());
    }
    let Some(script) = named.first() else { return Ok(Vec::new()) };
    let text = files.read(script, 0..SCRIPT_BYTES)?;
    let run = executed(&statements(&text)).map(|words| Command::run(&words));
    let mut commands: Vec<Command> = run.into_iter().chain(named_in(&text)).collect();
    let after = arguments.iter().position(|word| !word.starts_with(b"-")).map_or(arguments.len(), |at| at + 1);
    if let Some(command @ [first, ..]) = arguments.get(after..)
        && !first.starts_with(b"-")
    {
        commands.push(Command::run(command));
    }
    Ok(commands)
}

/// The last command that `exec` runs, as far as its words are literal.
fn executed(statements: &[Vec<Vec<u8>>]) -> Option<Vec<Vec<u8>>> {
    let (_, command) =
        statements.iter().filter_map(|words| words.split_first()).rfind(|(first, _)| *first == b"exec")?;
    (!command.is_empty()).then(|| command.to_vec())
}

/// The programs that a text names.
fn named_in(text: &[u8]) -> impl Iterator<Item = Command> {
    words(text).into_iter().map(Command::named)
}

/// The commands of a script, without words that variables replace.
fn statements(text: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut joined = text.to_vec();
    for at in 1..joined.len() {
        match joined.get_mut(at - 1..=at) {
            Some(end @ [b'\\', b'\n']) => end.fill(b' '),
            // A redirection, and no command in the background.
            Some([b'>' | b'<', and @ b'&'] | [and @ b'&', b'>']) => *and = b' ',
            _ => {}
        }
    }
    let words = |line: &[u8]| -> Vec<Vec<u8>> {
        let words = line.split(u8::is_ascii_whitespace).filter_map(|word| literal(unquoted(word)));
        words.skip_while(|word| word.contains(&b'=') || BEFORE.contains(word)).take(WORDS).map(<[u8]>::to_vec).collect()
    };
    let lines = joined.split(|byte| b"\n;&|".contains(byte)).filter(|line| !line.trim_ascii_start().starts_with(b"#"));
    lines.map(words).filter(|words| !words.is_empty()).take(STATEMENTS).collect()
}

/// A word, or the program at the end of one with variables: `"$JAVA_HOME"/bin/java`.
fn literal(word: &[u8]) -> Option<&[u8]> {
    if !word.contains(&b'$') {
        return Some(word).filter(|word| !word.is_empty());
    }
    let at = word.windows(BIN.len()).rposition(|window| window == BIN)?;
    word.get(at + BIN.len()..).filter(|name| !name.is_empty() && !name.contains(&b'$'))
}

fn unquoted(word: &[u8]) -> &[u8] {
    let is_quote = |byte: &&u8| b"\"'".contains(byte);
    let start = word.iter().take_while(is_quote).count();
    let end = word.iter().rev().take_while(is_quote).count();
    word.get(start..word.len().saturating_sub(end)).unwrap_or_default()
}

/// The words of a script that may be names of programs, each once. Comments are omitted.
fn words(text: &[u8]) -> Vec<Vec<u8>> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_./+-[".contains(byte);
    let mut seen = HashSet::new();
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii_start().starts_with(b"#"));
    let words = lines.flat_map(|line| line.split(|byte| !is_part(byte)));
    let words = words.map(|word| word.strip_prefix(BIN).unwrap_or(word));
    let words = words.filter(|word| !word.is_empty() && !BUILT_IN.contains(word));
    words.filter(|word| seen.insert(*word)).take(WORDS).map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::MapFiles;

    fn owned(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_script_line_has_one_argument_unless_env_splits_it() {
        assert_eq!(interpreter(b"/bin/sh\nexec x"), owned(&["/bin/sh"]));
        assert_eq!(interpreter(b" /bin/sh -e -u \n"), owned(&["/bin/sh", "-e -u"]));
        assert_eq!(interpreter(b"/usr/bin/env -S node --x a\n"), owned(&["/usr/bin/env", "node", "--x", "a"]));
        assert!(interpreter(b"\n").is_empty());
    }

    #[test]
    fn a_wrapper_runs_what_begins_with_a_program() {
        let is_program = |word: &&[u8]| *word == b"server";
        let words = owned(&["--user=5", "A=server", "app", "server", "-x"]);
        assert_eq!(wrapped(&words, &is_program), Some(Command::run(&owned(&["server", "-x"]))));
        assert_eq!(wrapped(&owned(&["app"]), &is_program), None);
    }

    #[test]
    fn a_command_line_runs_what_follows_exec_and_names_the_rest() {
        let found = commands(&MapFiles::default(), &owned(&["-ec", "mkdir /x; exec server --port 1"]), &[]).unwrap();
        assert_eq!(found[0], Command::run(&owned(&["server", "--port", "1"])));
        assert!(found.contains(&Command::named(b"mkdir".to_vec())));
        for text in [
            "cd /app; server app:app 2>&1",
            "server app:app &> /log",
            "server app:app | tee /log",
            "server app:app & wait",
        ] {
            let found = commands(&MapFiles::default(), &owned(&["-c", text]), &[]).unwrap();
            let is_server =
                |command: &Command| command.runs && command.words.starts_with(&owned(&["server", "app:app"]));
            assert!(found.iter().any(is_server), "{text}: {found:?}");
        }
        let found = commands(&MapFiles::default(), &owned(&["-c", "A=1 B=2 server \"$X\" app:app"]), &[]).unwrap();
        assert_eq!(found[0], Command::run(&owned(&["server", "app:app"])));
    }

    #[test]
    fn a_script_runs_what_its_last_exec_names() {
        let script = "#!/bin/sh\n# exec no\nif [ $1 ]; then exec first; fi\nexec \"${JAVA}\"/bin/java $OPTS \\\n -jar '/app.jar' a:b\n";
        let files = MapFiles::default().with("/run.sh", script);
        let file = files.find(b"/run.sh").unwrap();
        let found = commands(&files, &owned(&["/run.sh"]), &[file]).unwrap();
        assert_eq!(found[0], Command::run(&owned(&["java", "-jar", "/app.jar", "a:b"])));
        assert!(found.contains(&Command::named(b"java".to_vec())), "{found:?}");
    }
}
