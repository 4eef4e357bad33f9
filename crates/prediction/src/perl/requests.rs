//! The modules that a Perl source uses, found by its lines and not by a full parser.
//!
//! `use` works wherever it is written. `require` runs: those count that are not indented, or in a block `BEGIN`.

/// Bytes of a name: longer than any real one.
const NAME: usize = 256;
/// Requests of one source. Real ones have up to a few hundred.
const REQUESTS: usize = 4096;
/// Lines that end a source.
const ENDS: [&[u8]; 2] = [b"__END__", b"__DATA__"];
/// The end of documentation, which begins with a line `=NAME`.
const CUT: &[u8] = b"=cut";
const BEGIN: &[u8] = b"BEGIN";
/// Words before a statement.
const BEFORE: [&[u8]; 4] = [BEGIN, b"eval", b"do", b"{"];
/// Modules that load those that their arguments name.
const LOAD_OTHERS: [&[u8]; 2] = [b"parent", b"base"];
/// The argument by which the others are loaded already.
const LOADED: &[u8] = b"-norequire";
const ADD_DIRECTORY: &[u8] = b"lib";

/// What a source loads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// `A::B`
    Module(Vec<u8>),
    /// A path, below a directory of modules or the working directory.
    File(Vec<u8>),
    /// Modules are also searched in this directory.
    Directory(Vec<u8>),
}

/// The requests of a source, in their order.
pub(super) fn requests(source: &[u8]) -> Vec<Request> {
    let mut found = Vec::new();
    let (mut is_documentation, mut is_begin) = (false, false);
    for line in source.split(|byte| *byte == b'\n') {
        let is_indented = line.first().is_some_and(u8::is_ascii_whitespace);
        if ENDS.contains(&line.trim_ascii_end()) || found.len() >= REQUESTS {
            break;
        }
        if let [b'=', letter, ..] = line
            && letter.is_ascii_alphabetic()
        {
            is_documentation = !line.starts_with(CUT);
            continue;
        }
        if is_documentation {
            continue;
        }
        is_begin = line.starts_with(BEGIN) || is_begin && !line.starts_with(b"}");
        let line = line.trim_ascii();
        if !line.starts_with(b"#") {
            for statement in line.split(|byte| *byte == b';') {
                of_statement(statement, !is_indented || is_begin, &mut found);
            }
        }
    }
    found.truncate(REQUESTS);
    found
}

fn of_statement(statement: &[u8], runs: bool, found: &mut Vec<Request>) {
    let mut rest = statement.trim_ascii();
    while let Some(after) = BEFORE.iter().find_map(|word| rest.strip_prefix(*word)) {
        rest = after.trim_ascii_start();
    }
    let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
    let (verb, rest) = rest.split_at_checked(end).unwrap_or_default();
    let rest = rest.trim_ascii_start();
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_:".contains(byte);
    let end = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
    let (name, arguments) = rest.split_at_checked(end).unwrap_or_default();
    match verb {
        b"require" if runs && name.is_empty() => found.extend(words(arguments).next().map(Request::File)),
        b"require" if !runs => {}
        b"use" | b"no" | b"require" if is_module(name) => {
            if name == ADD_DIRECTORY {
                found.extend(words(arguments).map(Request::Directory));
                return;
            }
            found.push(Request::Module(name.to_vec()));
            let others: Vec<Vec<u8>> = words(arguments).collect();
            if LOAD_OTHERS.contains(&name) && !others.iter().any(|word| word == LOADED) {
                found.extend(others.into_iter().filter(|word| is_module(word)).map(Request::Module));
            }
        }
        _ => {}
    }
}

/// Names do not begin with digits, as versions do.
fn is_module(name: &[u8]) -> bool {
    let is_version = |name: &[u8]| matches!(name, [b'v', digit, ..] if digit.is_ascii_digit());
    name.len() <= NAME && name.first().is_some_and(u8::is_ascii_alphabetic) && !is_version(name)
}

/// The words of a list: strings, or `qw(…)`.
fn words(list: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_:/.$-".contains(byte);
    let words = list.split(move |byte| !is_part(byte));
    words.filter(|word| !word.is_empty() && word.len() <= NAME && *word != b"qw").map(<[u8]>::to_vec)
}
