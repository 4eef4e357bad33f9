//! `USER:PASSWORD`: on the command line, where every user of the machine can read it in /proc, or from a file.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};

/// Maximum size of a credentials file in bytes: a token of a registry has a few KiB.
const FILE_BYTES: u64 = 64 << 10;

/// The file name for standard input.
const STDIN: &str = "-";

/// `USER:PASSWORD`, hidden in debug output.
#[derive(Clone)]
pub(super) struct Creds(pub(super) String);

impl std::fmt::Debug for Creds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Creds(…)")
    }
}

/// Parses credentials on the command line. `usage` removes them from the error.
pub(super) fn creds(argument: &str) -> Result<Creds, String> {
    match argument.split_once(':') {
        Some((user, _)) if !user.is_empty() => Ok(Creds(argument.to_owned())),
        _ => Err("expected USER:PASSWORD".to_owned()),
    }
}

/// Reads credentials from the single line of a file. `-` is standard input, `/dev/fd/N` a descriptor.
pub(super) fn creds_file() -> impl TypedValueParser<Value = Creds> {
    OsStringValueParser::new().map(PathBuf::from).try_map(|file| read(&file))
}

fn read(file: &Path) -> Result<Creds, String> {
    if file != Path::new(STDIN) {
        return of(File::open(file).map_err(|error| error.to_string())?);
    }
    match io::stdin() {
        stdin if stdin.is_terminal() => Err("standard input is a terminal and would echo the password".to_owned()),
        stdin => of(stdin.lock()),
    }
}

fn of(input: impl Read) -> Result<Creds, String> {
    let mut text = String::new();
    input.take(FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_BYTES {
        return Err(format!("the file has more than {FILE_BYTES} bytes"));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.contains(['\n', '\r', '\0']) {
        return Err("expected one line, USER:PASSWORD".to_owned());
    }
    creds(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_may_be_empty_or_contain_colons_and_is_never_printed() {
        assert_eq!(creds("a:b:c").expect("valid").0, "a:b:c");
        assert!(creds("a:").is_ok());
        assert!(creds("secret").is_err());
        assert!(creds(":secret").is_err());
        assert_eq!(format!("{:?}", Creds("a:secret".into())), "Creds(…)");
    }

    #[test]
    fn a_file_has_one_line_with_or_without_a_newline() {
        for text in ["alice:pass word", "alice:pass word\n", "alice:pass word\r\n"] {
            assert_eq!(of(text.as_bytes()).expect(text).0, "alice:pass word");
        }
        for odd in ["", "\n", "alice", "alice:a\nbob:b\n", "alice:\0"] {
            assert!(of(odd.as_bytes()).is_err(), "{odd:?}");
        }
        assert!(of(io::repeat(b'x')).is_err(), "an endless file is rejected");
    }
}
