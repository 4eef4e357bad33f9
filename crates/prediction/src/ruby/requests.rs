//! The libraries that a Ruby source loads, found by its lines and not by a full parser.
//!
//! What a method loads is not loaded when its file is: lines between `def` and the `end` below it are omitted.

use super::super::files::{join, normal};
use super::super::sources::contains;

/// Bytes of a name: longer than any real one.
const NAME: usize = 256;
/// Requests of one source. Real ones have up to a few hundred.
const REQUESTS: usize = 4096;
/// A line that ends a source.
const END: &[u8] = b"__END__";
/// A comment of several lines.
const COMMENT: (&[u8], &[u8]) = (b"=begin", b"=end");
/// The directory of the source, at the beginning of a string.
const HERE: &[u8] = b"#{__dir__}/";
/// What is before a path that is relative to the file of the source, and to its directory.
const EXPANDED: [(&[u8], &[u8]); 2] = [(b"__FILE__", b".."), (b"__dir__", b"")];
/// Programs of gems run the file of this gem.
const PROGRAM: [&[u8]; 2] = [b"activate_bin_path(", b"bin_path("];
/// Loads all gems of the application.
const ALL_GEMS: &[u8] = b"Bundler.require";

/// What a source loads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// A name below a directory of libraries, without its ending.
    Feature(Vec<u8>),
    /// An absolute path, maybe without its ending.
    File(Vec<u8>),
    /// Libraries are also searched in this directory.
    Directory(Vec<u8>),
    /// A program of a gem.
    Program { gem: Vec<u8>, name: Vec<u8> },
    /// The gems of the application.
    Gemfile,
}

/// The requests of a source in a directory, in their order.
pub(super) fn requests(source: &[u8], directory: &[u8]) -> Vec<Request> {
    let mut found = Vec::new();
    let mut is_comment = false;
    // The indentation of the method around a line.
    let mut method: Option<usize> = None;
    for line in source.split(|byte| *byte == b'\n') {
        if line.starts_with(END) || found.len() >= REQUESTS {
            break;
        }
        is_comment = line.starts_with(COMMENT.0) || is_comment && !line.starts_with(COMMENT.1);
        let text = line.trim_ascii();
        if is_comment || text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        let indentation = line.len() - line.trim_ascii_start().len();
        if let Some(outer) = method {
            if indentation <= outer && text.starts_with(b"end") {
                method = None;
            }
            continue;
        }
        if text.starts_with(b"def ") {
            method = (!is_one_line(text)).then_some(indentation);
            continue;
        }
        text.split(|byte| *byte == b';').for_each(|statement| of_statement(statement, directory, &mut found));
    }
    found.truncate(REQUESTS);
    found
}

/// Whether a method ends in its first line: `def a; b; end`, `def a(b = 1) = b`.
fn is_one_line(definition: &[u8]) -> bool {
    let end = definition.iter().rposition(|byte| *byte == b')').unwrap_or_default();
    let after = definition.get(end..).unwrap_or_default();
    definition.ends_with(b" end") || contains(after, b" = ")
}

fn of_statement(statement: &[u8], directory: &[u8], found: &mut Vec<Request>) {
    let statement = statement.trim_ascii();
    let end =
        statement.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').unwrap_or(statement.len());
    let (verb, rest) = statement.split_at_checked(end).unwrap_or_default();
    let call = PROGRAM.iter().find_map(|call| statement.windows(call.len()).position(|window| window == *call));
    if let Some(call) = call {
        let mut arguments = strings(statement.get(call..).unwrap_or_default());
        if let (Some(gem), Some(name)) = (arguments.next(), arguments.next()) {
            found.push(Request::Program { gem: gem.to_vec(), name: name.to_vec() });
        }
        return;
    }
    let mut strings = strings(rest);
    match verb {
        b"require_relative" => {
            found.extend(strings.next().map(|path| Request::File(normal(&join(directory, path)))));
        }
        b"require" | b"load" => found.extend(strings.next().map(|text| required(text, rest, directory))),
        _ if contains(statement, ALL_GEMS) => found.push(Request::Gemfile),
        _ => {}
    }
}

/// What `require` loads, by the first string in its arguments.
fn required(text: &[u8], arguments: &[u8], directory: &[u8]) -> Request {
    if let Some(path) = text.strip_prefix(HERE) {
        return Request::File(normal(&join(directory, path)));
    }
    // `File.expand_path("../x", __FILE__)`, `File.join(__dir__, "x")`
    if let Some((_, leaves)) = EXPANDED.iter().find(|(word, _)| contains(arguments, word)) {
        let path = if leaves.is_empty() { text } else { text.strip_prefix(b"../").unwrap_or(text) };
        return Request::File(normal(&join(directory, path.trim_ascii_start())));
    }
    Request::Feature(text.strip_suffix(b".rb").unwrap_or(text).to_vec())
}

/// The strings of a statement.
fn strings(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let at = rest.iter().position(|byte| b"\"'".contains(byte))?;
        let (quote, after) = rest.get(at..)?.split_first()?;
        let end = after.iter().position(|byte| byte == quote)?;
        rest = after.get(end + 1..)?;
        after.get(..end)
    })
    .filter(|text| !text.is_empty() && text.len() <= NAME)
}
