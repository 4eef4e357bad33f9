//! The modules that a source in JavaScript names, found by its strings and not by a full parser.

/// Bytes of a specifier: longer than any real one. Each is kept until it is followed.
const SPECIFIER: usize = 256;
/// Specifiers of one source. Large bundles have some hundred.
const SPECIFIERS: usize = 4096;
/// Bytes of a regular expression: without a limit each `/` of a long line could be searched to its end.
const EXPRESSION: usize = 256;
/// What precedes a regular expression. After anything else `/` is a division.
const BEFORE_EXPRESSION: &[u8] = b"(,=:[!&|?{};+-*%~^<>";
const WORDS_BEFORE_EXPRESSION: [&[u8]; 4] = [b"return", b"typeof", b"case", b"in"];

/// How a module is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Require,
    Import,
}

/// The name of a module in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Specifier {
    pub(super) text: Vec<u8>,
    pub(super) kind: Kind,
}

/// The specifiers of a source, in their order.
pub(super) fn specifiers(source: &[u8]) -> Vec<Specifier> {
    let mut scanner = Scanner { source, at: 0, depth: 0, templates: Vec::new(), has_ends: true, found: Vec::new() };
    while scanner.found.len() < SPECIFIERS && scanner.step() {}
    scanner.found
}

struct Scanner<'a> {
    source: &'a [u8],
    at: usize,
    /// Open braces.
    depth: usize,
    /// The open braces before each `${` that is open.
    templates: Vec<usize>,
    /// Whether the rest may have an end of a comment.
    has_ends: bool,
    found: Vec<Specifier>,
}

impl Scanner<'_> {
    fn rest(&self) -> &[u8] {
        self.source.get(self.at..).unwrap_or_default()
    }

    /// Reads a token, or a byte that does not matter. False: the source ends.
    fn step(&mut self) -> bool {
        let Some(&byte) = self.rest().first() else { return false };
        match byte {
            b'"' | b'\'' => self.string(byte),
            b'/' => self.slash(),
            b'`' => {
                self.at += 1;
                self.template();
            }
            b'}' if self.templates.last() == Some(&self.depth) => {
                self.templates.pop();
                self.at += 1;
                self.template();
            }
            _ => {
                self.depth = match byte {
                    b'{' => self.depth + 1,
                    b'}' => self.depth.saturating_sub(1),
                    _ => self.depth,
                };
                self.at += if byte == b'\\' { 2 } else { 1 };
            }
        }
        true
    }

    /// The text of a template, up to its end or to an expression in it.
    fn template(&mut self) {
        while let Some(&byte) = self.rest().first() {
            if self.rest().starts_with(b"${") {
                self.templates.push(self.depth);
                self.at += 2;
                return;
            }
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'`' {
                return;
            }
        }
    }

    fn slash(&mut self) {
        let rest = self.rest();
        let length = if rest.starts_with(b"//") {
            rest.iter().take_while(|byte| **byte != b'\n').count()
        } else if rest.starts_with(b"/*") && self.has_ends {
            let end = rest.windows(2).skip(2).position(|window| window == b"*/");
            self.has_ends = end.is_some();
            end.map_or(1, |end| end + 4)
        } else {
            self.expression().unwrap_or(1)
        };
        self.at += length;
    }

    /// The length of a regular expression, if there is one.
    fn expression(&self) -> Option<usize> {
        let before = self.source.get(..self.at)?.trim_ascii_end();
        let may_begin = before.last().is_none_or(|byte| BEFORE_EXPRESSION.contains(byte))
            || WORDS_BEFORE_EXPRESSION.iter().any(|word| ends_with_word(before, word));
        if !may_begin {
            return None;
        }
        let (mut length, mut is_in_class) = (1, false);
        while length < EXPRESSION {
            match self.rest().get(length)? {
                b'\n' => return None,
                b'/' if !is_in_class => return Some(length + 1),
                b'[' => is_in_class = true,
                b']' => is_in_class = false,
                b'\\' => length += 1,
                _ => {}
            }
            length += 1;
        }
        None
    }

    /// A string, which may be a specifier. One that its line does not end is none, but an apostrophe somewhere.
    fn string(&mut self, quote: u8) {
        let mut length = 1;
        let end = loop {
            match self.rest().get(length) {
                None | Some(b'\n') => break None,
                Some(byte) if *byte == quote => break Some(length),
                Some(b'\\') => length += 2,
                Some(_) => length += 1,
            }
        };
        let Some(end) = end else {
            self.at += 1;
            return;
        };
        let before = self.source.get(..self.at).unwrap_or_default();
        let text = self.rest().get(1..end).unwrap_or_default();
        let after = self.rest().get(end + 1..).unwrap_or_default();
        if !text.is_empty()
            && text.len() <= SPECIFIER
            && !text.contains(&b'\\')
            && let Some(kind) = kind(before, after)
        {
            let text = text.to_vec();
            self.found.push(Specifier { text, kind });
        }
        self.at += end + 1;
    }
}

/// What a string between these parts of the source loads.
fn kind(before: &[u8], after: &[u8]) -> Option<Kind> {
    let before = before.trim_ascii_end();
    let Some(called) = before.strip_suffix(b"(").map(<[u8]>::trim_ascii_end) else {
        return (ends_with_word(before, b"from") || ends_with_word(before, b"import")).then_some(Kind::Import);
    };
    if !after.trim_ascii_start().first().is_some_and(|byte| b"),".contains(byte)) {
        // The name is computed.
        return None;
    }
    if ends_with_word(called, b"require") {
        return Some(Kind::Require);
    }
    ends_with_word(called, b"import").then_some(Kind::Import)
}

fn ends_with_word(text: &[u8], word: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_$.".contains(byte);
    text.strip_suffix(word).is_some_and(|before| !before.last().is_some_and(is_part))
}
