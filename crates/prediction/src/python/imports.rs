//! The imports in the source of a Python module, found by its statements and not by a full parser.

use std::collections::HashSet;
use std::rc::Rc;

use super::super::sources::contains;

/// Bytes of a dotted name: longer than any real one. Each import is kept with its whole name.
pub(super) const NAME: usize = 256;
/// Imports of one source. Real ones have up to a few hundred, and a made up one must not fill the memory.
const IMPORTS: usize = 4096;
/// Imports of one `try` that are noted. Real ones have a few.
const TRIED: usize = 16;
/// Words that begin a block.
const HEADERS: [&[u8]; 14] = [
    b"if", b"elif", b"else", b"try", b"except", b"finally", b"with", b"for", b"while", b"class", b"def", b"async",
    b"match", b"case",
];
/// Bytes of a statement in which its first word is looked for: it is longer than any of these with its indentation.
const HEADER: usize = 64;
/// Conditions that are false on Linux when a program runs, without white space.
const NEVER: [&[u8]; 10] = [
    b"TYPE_CHECKING",
    b"False",
    b"0",
    b"sys.platform==\"win32\"",
    b"sys.platform==\"darwin\"",
    b"sys.platform.startswith(\"win\")",
    b"platform.system()==\"Windows\"",
    b"os.name==\"nt\"",
    b"_mswindows",
    b"WINDOWS",
];

/// How a source runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role<'a> {
    /// As the program: `__name__` is `"__main__"`, and the functions that it calls run too.
    Script,
    Module,
    /// As a module of which another one calls this function.
    Called(&'a [u8]),
}

/// One module that a source imports, or a name of a module that may be a submodule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    /// Leading dots. None: `module` is absolute.
    pub(super) dots: usize,
    /// A dotted name. Empty: the package that the dots lead to.
    pub(super) module: Vec<u8>,
    /// Imports of the `try` whose `except ImportError` has this one: it runs only if one of them fails.
    pub(super) instead_of: Rc<[(usize, Vec<u8>)]>,
}

/// The imports that run when a source is imported, in their order.
pub(super) fn imports(source: &[u8], role: Role<'_>) -> Vec<Import> {
    let called = called(source, role);
    let mut skip = Skip { role, called: &called, until: None };
    let mut tries = Tries::default();
    let mut imports = Vec::new();
    for statement in Statements::of(source).filter(|statement| !skip.skips(statement)) {
        if imports.len() >= IMPORTS {
            break;
        }
        tries.enter(&statement);
        for (dots, module, is_tried) in of_statement(&statement.text) {
            if dots + module.len() <= NAME {
                let instead_of = tries.note(dots, &module, is_tried);
                imports.push(Import { dots, module, instead_of });
            }
        }
    }
    imports
}

/// The functions whose bodies run: those that statements call directly which run themselves.
pub(super) fn called(source: &[u8], role: Role<'_>) -> HashSet<Vec<u8>> {
    let mut called: HashSet<Vec<u8>> = match role {
        Role::Module => return HashSet::new(),
        Role::Script => HashSet::new(),
        Role::Called(function) => HashSet::from([function.to_vec()]),
    };
    let first = called.clone();
    let mut skip = Skip { role, called: &first, until: None };
    for statement in Statements::of(source) {
        if !skip.skips(&statement) {
            called.extend(names_called(&statement.text));
        }
    }
    called
}

/// The strings of a source that are dotted names, in their order. Frameworks are given modules by such names.
pub(super) fn names_in_strings(source: &[u8]) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    for statement in Statements::of(source) {
        let mut rest = statement.text.as_slice();
        while let Some(at) = rest.iter().position(|byte| b"\"'".contains(byte)) {
            let (from, quote) = (rest.get(at + 1..).unwrap_or_default(), rest.get(at));
            let end = from.iter().position(|byte| Some(byte) == quote).unwrap_or(from.len());
            let (name, after) = from.split_at_checked(end).unwrap_or_default();
            rest = after.get(1..).unwrap_or_default();
            if name.len() <= NAME && is_dotted_name(name) {
                names.push(name.to_vec());
            }
            if names.len() >= IMPORTS {
                return names;
            }
        }
    }
    names
}

/// Whether a text is names joined by dots.
pub(super) fn is_dotted_name(text: &[u8]) -> bool {
    let is_word = |part: &[u8]| {
        part.first().is_some_and(|byte| is_name(*byte) && !byte.is_ascii_digit())
            && part.iter().all(|byte| is_name(*byte))
    };
    text.split(|byte| *byte == b'.').all(is_word)
}

/// The modules of one statement: dots, name, and whether the statement fails without it.
fn of_statement(text: &[u8]) -> Vec<(usize, Vec<u8>, bool)> {
    match split_word(text) {
        (b"import", rest) => {
            let names = rest.split(|byte| *byte == b',').map(dotted).filter(|name| !name.is_empty()).take(IMPORTS);
            names.map(|name| (0, name.to_vec(), true)).collect()
        }
        (b"from", rest) => from_import(rest),
        _ => calls(text),
    }
}

/// `MODULE import NAME, …`.
fn from_import(text: &[u8]) -> Vec<(usize, Vec<u8>, bool)> {
    let is_dot = |byte: &&u8| **byte == b'.' || byte.is_ascii_whitespace();
    let lead = text.iter().take_while(is_dot).count();
    let (lead, rest) = text.split_at_checked(lead).unwrap_or_default();
    let dots = lead.iter().filter(|byte| **byte == b'.').count();
    let (module, rest) = if split_word(rest).0 == b"import" { (b"".as_slice(), rest) } else { split_name(rest) };
    let (b"import", names) = split_word(rest) else { return Vec::new() };
    if module.len() > NAME {
        return Vec::new();
    }
    let names = names.split(|byte| b"(,)".contains(byte)).map(dotted).filter(|name| !name.is_empty()).take(IMPORTS);
    let submodules = names.map(|name| {
        let parts: &[&[u8]] = if module.is_empty() { &[name] } else { &[module, name] };
        (dots, parts.join(&b'.'), false)
    });
    std::iter::once((dots, module.to_vec(), true)).chain(submodules).collect()
}

/// Imports by calls with a literal name.
fn calls(text: &[u8]) -> Vec<(usize, Vec<u8>, bool)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'(') {
        let (before, after) = rest.split_at_checked(at).unwrap_or_default();
        rest = after.get(1..).unwrap_or_default();
        if !before.ends_with(b"__import__") && !before.ends_with(b"import_module") {
            continue;
        }
        let argument = rest.trim_ascii_start();
        let Some(quote) = argument.first().filter(|byte| b"\"'".contains(byte)) else { continue };
        let name = argument.get(1..).unwrap_or_default().split(|byte| byte == quote).next().unwrap_or_default();
        let dots = name.iter().take_while(|byte| **byte == b'.').count();
        let module = name.get(dots..).unwrap_or_default();
        if !module.is_empty() && dotted(module) == module {
            found.push((dots, module.to_vec(), true));
        }
    }
    found
}

/// The names that a statement calls directly.
fn names_called(text: &[u8]) -> Vec<Vec<u8>> {
    let pieces: Vec<&[u8]> = text.split(|byte| *byte == b'(').collect();
    let (_, calls) = pieces.split_last().unwrap_or((&b"".as_slice(), &[]));
    let names = calls.iter().map(|piece| {
        let length = piece.iter().rev().take_while(|byte| is_name(**byte)).count();
        piece.get(piece.len() - length..).unwrap_or_default()
    });
    names.filter(|name| !name.is_empty() && name.len() <= NAME).map(<[u8]>::to_vec).collect()
}

/// A dotted name at the start of a text, or nothing.
fn dotted(text: &[u8]) -> &[u8] {
    split_name(text.trim_ascii_start()).0
}

fn split_name(text: &[u8]) -> (&[u8], &[u8]) {
    let length = text.iter().take_while(|byte| is_name(**byte) || **byte == b'.').count();
    text.split_at_checked(length).unwrap_or_default()
}

/// The first word, and what follows it.
fn split_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    let length = text.iter().take_while(|byte| is_name(**byte)).count();
    text.split_at_checked(length).unwrap_or_default()
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Which statements do not run.
struct Skip<'a> {
    role: Role<'a>,
    /// Functions whose bodies run.
    called: &'a HashSet<Vec<u8>>,
    /// The indentation and the line of a header whose block does not run.
    until: Option<(usize, usize)>,
}

impl Skip<'_> {
    fn skips(&mut self, statement: &Statement) -> bool {
        if self.until.is_some_and(|(indent, line)| statement.indent > indent || statement.line == line) {
            return true;
        }
        let is_skipped = statement.is_header && !self.enters(&statement.text);
        self.until = is_skipped.then_some((statement.indent, statement.line));
        is_skipped
    }

    fn enters(&self, header: &[u8]) -> bool {
        match split_word(header) {
            (b"def", rest) => self.called.contains(split_word(rest).0),
            (b"async", rest) => match split_word(rest) {
                (b"def", rest) => self.called.contains(split_word(rest).0),
                _ => true,
            },
            (b"if" | b"elif", condition) => {
                let condition: Vec<u8> = condition.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
                let condition: Vec<u8> =
                    condition.iter().map(|byte| if *byte == b'\'' { b'"' } else { *byte }).collect();
                let is_main = [b"__name__==\"__main__\"".as_slice(), b"\"__main__\"==__name__"].contains(&&*condition);
                let is_false = |never: &&[u8]| {
                    condition.strip_prefix(*never).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"and"))
                };
                let is_never = NEVER.iter().any(is_false) || condition.ends_with(b".TYPE_CHECKING");
                if is_main { self.role == Role::Script } else { !is_never || condition.starts_with(b"not") }
            }
            _ => true,
        }
    }
}

/// The `try` statements around a statement.
#[derive(Default)]
struct Tries(Vec<Try>);

struct Try {
    indent: usize,
    part: Part,
    tried: Rc<[(usize, Vec<u8>)]>,
    /// What `tried` becomes when the body ends.
    body: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Body,
    Fallback,
    Other,
}

impl Tries {
    fn enter(&mut self, statement: &Statement) {
        let word = if statement.is_header { split_word(&statement.text).0 } else { b"" };
        let continues = [b"except".as_slice(), b"else", b"finally"].contains(&word);
        let ends = |it: &Try| it.indent > statement.indent || (it.indent == statement.indent && !continues);
        // The body of a `try` in one line is a statement of its own with the same indentation.
        while !statement.follows_header && self.0.last().is_some_and(ends) {
            self.0.pop();
        }
        if word == b"try" {
            self.0.push(Try { indent: statement.indent, part: Part::Body, tried: Rc::new([]), body: Vec::new() });
        } else if continues && let Some(last) = self.0.last_mut().filter(|it| it.indent == statement.indent) {
            if last.part == Part::Body {
                last.tried = std::mem::take(&mut last.body).into();
            }
            let is_of_imports = [b"ImportError".as_slice(), b"ModuleNotFoundError"]
                .iter()
                .any(|error| contains(&statement.text, error));
            last.part = if word == b"except" && is_of_imports { Part::Fallback } else { Part::Other };
        }
    }

    /// Notes an import, and returns what it stands for.
    fn note(&mut self, dots: usize, module: &[u8], is_tried: bool) -> Rc<[(usize, Vec<u8>)]> {
        match self.0.last_mut() {
            Some(last) if last.part == Part::Fallback => Rc::clone(&last.tried),
            Some(last) if last.part == Part::Body && is_tried && last.body.len() < TRIED => {
                last.body.push((dots, module.to_vec()));
                Rc::new([])
            }
            _ => Rc::new([]),
        }
    }
}

/// One statement, or the header of a block without its colon.
struct Statement {
    indent: usize,
    line: usize,
    /// Without comments and without the inside of strings in triple quotes.
    text: Vec<u8>,
    is_header: bool,
    /// It is in the line of a header, as its block.
    follows_header: bool,
}

struct Statements<'a> {
    source: &'a [u8],
    at: usize,
    indent: usize,
    /// Logical lines so far.
    line: usize,
    starts_line: bool,
    follows_header: bool,
}

impl<'a> Statements<'a> {
    fn of(source: &'a [u8]) -> impl Iterator<Item = Statement> {
        let source = source.strip_prefix(b"\xef\xbb\xbf").unwrap_or(source);
        let all = Self { source, at: 0, indent: 0, line: 0, starts_line: true, follows_header: false };
        all.filter(|statement| !statement.text.trim_ascii().is_empty())
    }

    fn rest(&self) -> &'a [u8] {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn start_line(&mut self) {
        self.line += 1;
        (self.indent, self.starts_line, self.follows_header) = (0, false, false);
        while let Some(byte) = self.rest().first().filter(|byte| b" \t\x0c".contains(byte)) {
            self.indent = if *byte == b'\t' { (self.indent / 8 + 1) * 8 } else { self.indent + 1 };
            self.at += 1;
        }
    }

    /// Reads a string. Only a short kind of string is kept, with its quotes: the other one is documentation.
    fn string(&mut self, text: &mut Vec<u8>) {
        let rest = self.rest();
        let Some(quote) = rest.first().copied() else { return };
        let triple = [quote; 3];
        let (end, is_triple) = if rest.starts_with(&triple) {
            (triple.as_slice(), true)
        } else {
            (triple.get(..1).unwrap_or_default(), false)
        };
        let mut length = end.len();
        loop {
            let left = rest.get(length..).unwrap_or_default();
            match left.first() {
                // The string is not closed: the line ends it.
                None => break,
                Some(b'\n') if !is_triple => break,
                Some(b'\\') => length += 2,
                _ if left.starts_with(end) => {
                    length += end.len();
                    break;
                }
                _ => length += 1,
            }
        }
        self.at += length;
        text.extend_from_slice(if is_triple { b"\"\"" } else { rest.get(..length).unwrap_or_default() });
    }
}

impl Iterator for Statements<'_> {
    type Item = Statement;

    fn next(&mut self) -> Option<Statement> {
        self.rest().first()?;
        if self.starts_line {
            self.start_line();
        }
        let (mut text, mut depth, mut is_header) = (Vec::new(), 0_usize, false);
        let follows_header = self.follows_header;
        while let Some(&byte) = self.rest().first() {
            if b"\"'".contains(&byte) {
                self.string(&mut text);
                continue;
            }
            self.at += 1;
            match byte {
                b'\n' if depth == 0 => {
                    self.starts_line = true;
                    break;
                }
                b';' if depth == 0 => break,
                b':' if depth == 0 && HEADERS.contains(&split_word(text.get(..HEADER).unwrap_or(&text)).0) => {
                    (is_header, self.follows_header) = (true, true);
                    break;
                }
                b'#' => self.at += self.rest().iter().take_while(|byte| **byte != b'\n').count(),
                b'\\' if self.rest().trim_ascii_start().len() < self.rest().len() => {
                    self.at += self.rest().iter().take_while(|byte| **byte != b'\n').count() + 1;
                    text.push(b' ');
                }
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if !b"#\\".contains(&byte) {
                text.push(byte);
            }
        }
        Some(Statement { indent: self.indent, line: self.line, text, is_header, follows_header })
    }
}
