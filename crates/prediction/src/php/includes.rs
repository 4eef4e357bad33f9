//! The files that a PHP source includes, found by its words and not by a full parser.
//!
//! Paths are joined strings, with the directory of the source, variables and constants that were assigned such paths. Composer's table
//! (`vendor/composer/autoload_static.php`) has files that are always loaded, and those of the classes that `use` names.

use std::collections::HashMap;

use super::super::files::{join, normal, parent};

/// Bytes of a path or an expression: longer than any real one.
const TEXT: usize = 1024;
/// Bytes of the name of a class: longer than any real one.
const NAME: usize = 256;
/// Requests of one source. Real ones have up to a few hundred.
const REQUESTS: usize = 4096;
/// Variables and constants that are known, and entries of Composer's tables. Large applications have ten thousand classes.
const KNOWN: usize = 1 << 15;
/// Calls of `dirname` in each other.
const NESTED: usize = 8;
const INCLUDES: [&[u8]; 4] = [b"require_once", b"require", b"include_once", b"include"];
/// Composer's table, and the names of its parts: files that are always loaded, directories of classes by prefixes of their names, and files
/// by names of classes.
const COMPOSER: &[u8] = b"/composer/autoload_static.php";
const PART: &[u8] = b"public static $";
const ALWAYS: &[u8] = b"files";
const PREFIXES: &[u8] = b"prefixDirsPsr4";
const CLASSES: &[u8] = b"classMap";

/// A source.
pub(super) struct Source<'a> {
    pub(super) text: &'a [u8],
    /// Its directory.
    pub(super) directory: &'a [u8],
    pub(super) path: &'a [u8],
}

/// What the sources of a program have in common.
pub(super) struct Scope {
    /// The working directory.
    directory: Vec<u8>,
    constants: HashMap<Vec<u8>, Vec<u8>>,
    /// Directories of classes by prefixes of their names.
    prefixes: HashMap<Vec<u8>, Vec<u8>>,
    /// Files by names of classes.
    classes: HashMap<Vec<u8>, Vec<u8>>,
}

impl Scope {
    pub(super) fn of(directory: &[u8]) -> Self {
        let separator = (b"DIRECTORY_SEPARATOR".to_vec(), b"/".to_vec());
        let constants = HashMap::from([separator]);
        Self { directory: directory.to_vec(), constants, prefixes: HashMap::new(), classes: HashMap::new() }
    }

    /// The paths of the files that a source includes, in their order.
    pub(super) fn requests(&mut self, source: &Source<'_>) -> Vec<Vec<u8>> {
        if source.path.ends_with(COMPOSER) {
            return self.composer(source);
        }
        let mut variables = HashMap::new();
        let mut found = Vec::new();
        for statement in statements(source.text) {
            let values = Values { source, constants: &self.constants, variables: &variables };
            if let Some((name, value)) = assignment(statement)
                && let Some(value) = values.value(value)
            {
                if variables.len() < KNOWN {
                    variables.insert(name.to_vec(), value);
                }
            } else if let Some((name, value)) = definition(statement) {
                if let Some(value) = values.value(value).filter(|_| self.constants.len() < KNOWN) {
                    self.constants.entry(name.to_vec()).or_insert(value);
                }
            } else if let Some(class) = used(statement) {
                found.extend(self.class(class));
            } else if let Some(value) = included(statement).and_then(|value| values.value(value)) {
                // Relative to the working directory, or to that of the source.
                let directory = if value.starts_with(b"./") { &self.directory } else { source.directory };
                found.push(normal(&join(directory, &value)));
            }
            if found.len() >= REQUESTS {
                break;
            }
        }
        found
    }

    /// Reads the table of Composer, and returns the files that are always loaded.
    fn composer(&mut self, source: &Source<'_>) -> Vec<Vec<u8>> {
        let mut always = Vec::new();
        let (mut part, mut key) = (Vec::new(), Vec::new());
        let constants = std::mem::take(&mut self.constants);
        let values = Values { source, constants: &constants, variables: &HashMap::new() };
        for line in source.text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
            if let Some(name) = line.strip_prefix(PART) {
                part = name.iter().copied().take_while(|byte| is_name(*byte)).collect();
            }
            let Some(at) = line.windows(2).position(|window| window == b"=>").filter(|_| line.len() <= TEXT) else {
                continue;
            };
            let (left, right) = line.split_at_checked(at).unwrap_or_default();
            if let Some((name, _)) = literal(left) {
                key = unescaped(name);
            }
            let Some(path) = values.value(right.get(2..).unwrap_or_default()).map(|path| normal(&path)) else {
                continue;
            };
            match &*part {
                ALWAYS if always.len() < REQUESTS => always.push(path),
                PREFIXES if self.prefixes.len() < KNOWN => drop(self.prefixes.insert(key.clone(), path)),
                CLASSES if self.classes.len() < KNOWN => drop(self.classes.insert(key.clone(), path)),
                _ => {}
            }
        }
        self.constants = constants;
        always
    }

    /// The path of a class: that in the table, or below the directory of the longest prefix.
    fn class(&self, name: &[u8]) -> Option<Vec<u8>> {
        if let Some(path) = self.classes.get(name) {
            return Some(path.clone());
        }
        let ends = (0..name.len()).rev().filter(|at| name.get(*at) == Some(&b'\\'));
        let mut known = ends.filter_map(|at| {
            let (prefix, rest) = name.split_at_checked(at + 1)?;
            Some((self.prefixes.get(prefix)?, rest))
        });
        let (directory, rest) = known.next()?;
        let rest = rest.iter().map(|byte| if *byte == b'\\' { b'/' } else { *byte });
        Some([directory, b"/".as_slice(), &rest.collect::<Vec<u8>>(), b".php"].concat())
    }
}

/// The statements of a source, without comments of whole lines. A statement may be too long, in part or not one: strings are not parsed.
fn statements(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let is_comment = |line: &&[u8]| [b"//".as_slice(), b"#", b"*", b"/*"].iter().any(|start| line.starts_with(start));
    let lines = lines.filter(move |line| !is_comment(line));
    let statements = lines.flat_map(|line| line.split(|byte| b";{}".contains(byte)));
    let statements = statements.map(|statement| statement.strip_prefix(b"<?php").unwrap_or(statement).trim_ascii());
    statements.filter(|statement| !statement.is_empty() && statement.len() <= TEXT)
}

/// `$NAME = VALUE`
fn assignment(statement: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = statement.strip_prefix(b"$")?;
    let end = rest.iter().position(|byte| !is_name(*byte))?;
    let (name, rest) = rest.split_at_checked(end)?;
    let value = rest.trim_ascii_start().strip_prefix(b"=")?;
    (!value.starts_with(b"=")).then_some((name, value))
}

/// `define('NAME', VALUE)`
fn definition(statement: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = statement.windows(7).position(|window| window == b"define(")?;
    let arguments = statement.get(at + 7..)?.trim_ascii();
    let arguments = arguments.strip_suffix(b")")?;
    let (name, rest) = literal(arguments)?;
    Some((name, rest.trim_ascii_start().strip_prefix(b",")?))
}

/// `use NAME`, of a class.
fn used(statement: &[u8]) -> Option<&[u8]> {
    let name = statement.strip_prefix(b"use ")?.trim_ascii().split(u8::is_ascii_whitespace).next()?;
    let name = name.strip_prefix(b"\\").unwrap_or(name);
    (name.len() <= NAME && name.contains(&b'\\') && name.iter().all(|byte| is_name(*byte) || *byte == b'\\'))
        .then_some(name)
}

/// What follows a word that includes a file.
fn included(statement: &[u8]) -> Option<&[u8]> {
    INCLUDES.iter().find_map(|word| {
        let at = statement.windows(word.len()).position(|window| window == *word)?;
        let before = at.checked_sub(1).and_then(|at| statement.get(at));
        let rest = statement.get(at + word.len()..)?;
        let is_word = !before.is_some_and(|byte| is_name(*byte) || b"$>'\"".contains(byte))
            && !rest.first().is_some_and(|byte| is_name(*byte));
        is_word.then_some(rest)
    })
}

/// What names have as values in a source.
struct Values<'a> {
    source: &'a Source<'a>,
    constants: &'a HashMap<Vec<u8>, Vec<u8>>,
    variables: &'a HashMap<Vec<u8>, Vec<u8>>,
}

impl Values<'_> {
    /// The value of joined strings. None: it depends on anything else.
    fn value(&self, expression: &[u8]) -> Option<Vec<u8>> {
        let mut rest = expression.trim_ascii();
        while let Some(inner) = rest.strip_prefix(b"(") {
            rest = inner.trim_ascii();
        }
        let mut value = Vec::new();
        loop {
            let (part, after) = self.part(rest)?;
            value.extend(part);
            rest = after.trim_ascii_start();
            match rest.strip_prefix(b".") {
                Some(next) if value.len() <= TEXT => rest = next.trim_ascii_start(),
                _ => break,
            }
        }
        let is_end = rest.first().is_none_or(|byte| b")],".contains(byte));
        (is_end && !value.is_empty() && value.len() <= TEXT).then_some(value)
    }

    /// One part, and what follows it.
    fn part<'t>(&self, text: &'t [u8]) -> Option<(Vec<u8>, &'t [u8])> {
        let mut rest = text;
        let mut calls = 0;
        while let Some(arguments) = rest.strip_prefix(b"dirname(").filter(|_| calls < NESTED) {
            rest = arguments.trim_ascii_start();
            calls += 1;
        }
        let (mut value, mut rest) = self.name_or_literal(rest)?;
        for _ in 0..calls {
            rest = rest.trim_ascii_start();
            let mut levels = 1;
            if let Some(count) = rest.strip_prefix(b",") {
                let end = count.iter().position(|byte| *byte == b')')?;
                levels =
                    std::str::from_utf8(count.get(..end)?).ok()?.trim().parse().ok().filter(|count| *count < NESTED)?;
                rest = count.get(end..)?;
            }
            rest = rest.strip_prefix(b")")?;
            for _ in 0..levels {
                let above = parent(&value);
                value = if above.is_empty() { b"/".to_vec() } else { above.to_vec() };
            }
        }
        Some((value, rest))
    }

    fn name_or_literal<'t>(&self, text: &'t [u8]) -> Option<(Vec<u8>, &'t [u8])> {
        if let Some((value, rest)) = literal(text) {
            return Some((value.to_vec(), rest));
        }
        let (is_variable, text) = text.strip_prefix(b"$").map_or((false, text), |text| (true, text));
        let end = text.iter().position(|byte| !is_name(*byte)).unwrap_or(text.len());
        let (name, rest) = text.split_at_checked(end)?;
        let value = match name {
            _ if is_variable => self.variables.get(name)?.clone(),
            b"__DIR__" => self.source.directory.to_vec(),
            b"__FILE__" => self.source.path.to_vec(),
            _ => self.constants.get(name)?.clone(),
        };
        Some((value, rest))
    }
}

/// A string without variables at the beginning of a text, and what follows it.
fn literal(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (quote, rest) = text.trim_ascii_start().split_first().filter(|(quote, _)| b"\"'".contains(quote))?;
    let end = rest.iter().position(|byte| byte == quote)?;
    let value = rest.get(..end)?;
    (*quote == b'\'' || !value.contains(&b'$')).then_some((value, rest.get(end + 1..)?))
}

/// A string in which a backslash is written twice.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    for byte in text {
        if !(*byte == b'\\' && found.last() == Some(&b'\\')) {
            found.push(*byte);
        }
    }
    found
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
