//! A Rust file separated from its comments and strings, which is all the parsing that the rules need.

use std::ops::Range;

/// One name that a `use` declaration brings into scope.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    /// The imported path, such as `super::image::Image`; `*` for all names of a module.
    pub(super) path: String,
    /// The name in this file, which `as` may change.
    pub(super) name: String,
    /// Whether other files see it through this one.
    pub(super) is_public: bool,
}

/// A comment or a string.
pub(super) struct Literal {
    pub(super) is_comment: bool,
    /// Its first line.
    pub(super) line: usize,
    pub(super) text: String,
    /// Whether it is in an item that is compiled only for tests.
    pub(super) is_for_tests: bool,
}

/// A Rust file.
pub(super) struct Source {
    pub(super) path: String,
    /// Whether the whole file is test code.
    pub(super) is_test: bool,
    /// The file with comments, strings and characters blanked; line numbers are unchanged.
    pub(super) code: String,
    /// The blanked comments and strings.
    pub(super) literals: Vec<Literal>,
    /// The byte ranges of `code` that are compiled only for tests.
    tests: Vec<Range<usize>>,
    lines: usize,
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let (code, blanked) = blank(text);
        let tests = test_items(&code);
        let (mut line, mut end) = (1, 0);
        let literals = blanked.into_iter().map(|(at, text)| {
            line += code[end..at].matches('\n').count();
            end = at;
            let is_for_tests = tests.iter().any(|test| test.contains(&at));
            Literal { is_comment: text.starts_with('/'), line, text: text.to_owned(), is_for_tests }
        });
        let literals = literals.collect();
        let is_test = path.split('/').any(|part| matches!(part, "tests" | "benches" | "tests.rs" | "fuzz"));
        Self { path: path.to_owned(), is_test, code, literals, tests, lines: text.lines().count() }
    }

    /// The number of lines outside of test items.
    pub(super) fn lines_without_tests(&self) -> usize {
        let inside: usize = self.tests.iter().map(|r| self.code[r.clone()].matches('\n').count() + 1).sum();
        self.lines.saturating_sub(inside)
    }

    /// The line of a byte in `code`.
    pub(super) fn line_of(&self, position: usize) -> usize {
        self.code[..position].matches('\n').count() + 1
    }

    /// The positions of a word.
    pub(super) fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        let ends = move |at: usize| {
            let (before, after) = (&self.code[..at], &self.code[at + word.len()..]);
            !before.ends_with(is_name) && !after.starts_with(is_name)
        };
        self.code.match_indices(word).map(|(at, _)| at).filter(move |at| ends(*at))
    }

    /// Every path in code outside of tests, such as `std::fs::read`, with its line; `use` trees are expanded.
    pub(super) fn paths(&self) -> Vec<(usize, String)> {
        let mut paths = Vec::new();
        for statement in self.use_declarations() {
            unfold("", &self.code[statement.clone()], &mut |path, _| paths.push((statement.start, path)));
        }
        paths.extend(plain_paths(&self.code));
        paths.retain(|(at, _)| !self.is_for_tests(*at));
        paths.into_iter().map(|(at, path)| (self.line_of(at), path)).collect()
    }

    /// Every name that a `use` outside of tests brings into scope.
    pub(super) fn imports(&self) -> Vec<Import> {
        let mut imports = Vec::new();
        for statement in self.use_declarations().filter(|statement| !self.is_for_tests(statement.start)) {
            let line = self.code[..statement.start].rsplit(['\n', ';', '}']).next().unwrap_or_default();
            let is_public = line.trim_start().starts_with("pub");
            unfold("", &self.code[statement], &mut |path, name| {
                let path = path.strip_suffix("::self").map_or(path.clone(), str::to_owned);
                let name = if name == "self" { path.rsplit("::").next().unwrap_or_default().to_owned() } else { name };
                imports.push(Import { path, name, is_public });
            });
        }
        imports
    }

    /// The code without its tests and without its `use` declarations.
    pub(super) fn code_without_imports(&self) -> String {
        let mut ranges: Vec<_> = self.use_declarations().chain(self.tests.iter().cloned()).collect();
        ranges.sort_by_key(|range| range.start);
        let (mut code, mut end) = (String::with_capacity(self.code.len()), 0);
        for range in ranges {
            code.push_str(&self.code[end..range.start.max(end)]);
            end = end.max(range.end);
        }
        code.push_str(&self.code[end..]);
        code
    }

    /// The code with test items blanked; line numbers are unchanged.
    pub(super) fn code_without_tests(&self) -> String {
        let (mut code, mut end) = (String::with_capacity(self.code.len()), 0);
        for test in &self.tests {
            code.push_str(&self.code[end..test.start]);
            code.extend(self.code[test.clone()].chars().filter(|c| *c == '\n'));
            end = test.end;
        }
        code.push_str(&self.code[end..]);
        code
    }

    /// What follows each `use`, to its semicolon.
    fn use_declarations(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.words("use").map(|word| {
            let start = word + "use".len();
            start..self.code[start..].find(';').map_or(self.code.len(), |end| start + end)
        })
    }

    fn is_for_tests(&self, position: usize) -> bool {
        self.tests.iter().any(|r| r.contains(&position))
    }

    /// The paths, without `.rs`, of the modules that this file declares only for tests.
    pub(super) fn declared_test_modules(&self) -> Vec<String> {
        let folder = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let stem = self.path.strip_suffix(".rs").unwrap_or(&self.path);
        let root = ["lib", "main", "mod"].iter().any(|name| stem.rsplit('/').next() == Some(name));
        let base = if root { folder } else { stem };
        let declared = self.tests.iter().filter_map(|r| {
            let item = self.code[r.clone()].trim().strip_suffix(';')?;
            let (_, name) = item.rsplit_once("mod ")?;
            Some(format!("{base}/{}", name.trim()))
        });
        declared.collect()
    }
}

pub(super) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Expands `a::{b, c::{d, e as f}}` to `a::b`, `a::c::d`, `a::c::e`.
/// The second name is the one in the file: `b`, `d`, `f`.
fn unfold(prefix: &str, tree: &str, found: &mut impl FnMut(String, String)) {
    let tree = tree.trim();
    if let Some((head, rest)) = tree.split_once('{') {
        let inside = rest.rsplit_once('}').map_or(rest, |(inside, _)| inside);
        let prefix = format!("{prefix}{}", squeeze(head));
        split_at_commas(inside).for_each(|branch| unfold(&prefix, branch, found));
    } else if !tree.is_empty() {
        let mut words = tree.split_whitespace();
        let path = words.next().unwrap_or_default().trim_start_matches("::");
        let name = words.nth(1).unwrap_or_else(|| path.rsplit("::").next().unwrap_or_default());
        found(format!("{prefix}{path}"), name.to_owned());
    }
}

fn squeeze(text: &str) -> String {
    text.split_whitespace().collect()
}

/// Splits at the commas outside of braces.
fn split_at_commas(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |c| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// Paths of two or more names in the code.
pub(super) fn plain_paths(code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    let mut at = 0;
    while let Some(start) = code[at..].find(is_name).map(|i| at + i) {
        let end = code[start..].find(|c| !is_name(c) && c != ':').map_or(code.len(), |i| start + i);
        let path = code[start..end].trim_end_matches(':');
        if path.contains("::") {
            paths.push((start, path.to_owned()));
        }
        at = end;
    }
    paths
}

/// The items with `#[cfg(test)]`, from the attribute to the closing brace or the semicolon.
fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut items: Vec<Range<usize>> = Vec::new();
    for (start, attribute) in code.match_indices("#[cfg(test)]") {
        if items.last().is_some_and(|last| last.contains(&start)) {
            continue;
        }
        let body = start + attribute.len();
        items.push(start..item_end(code, body));
    }
    items
}

/// The end of the item that starts at `from`.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (i, c) in code[from..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return from + i + 1;
                }
            }
            ';' if depth == 0 => return from + i + 1,
            _ => {}
        }
    }
    code.len()
}

/// Replaces comments, strings and characters by blanks. Newlines stay, and so do byte positions of ASCII text.
/// Also returns what was replaced, with its position in the result.
fn blank(text: &str) -> (String, Vec<(usize, &str)>) {
    let mut code = String::with_capacity(text.len());
    let mut blanked = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match literal(rest, code.chars().next_back()) {
            0 => {
                code.push(c);
                c.len_utf8()
            }
            length => {
                blanked.push((code.len(), &rest[..length]));
                code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
                length
            }
        };
        rest = &rest[length..];
    }
    (code, blanked)
}

/// The length of the comment, string or character at the start of `text`; 0 if there is none.
fn literal(text: &str, before: Option<char>) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return block_comment(text);
    }
    if text.starts_with('"') {
        return string(text);
    }
    if text.starts_with('\'') {
        return character(text);
    }
    if before.is_some_and(is_name) {
        return 0;
    }
    raw_string(text)
}

/// The length of a block comment. Block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn string(text: &str) -> usize {
    let mut escaped = false;
    for (i, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return i + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a character: `'a'` and `'\n'` are characters, `'a` is a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => text[2..].char_indices().skip(1).find(|(_, c)| *c == '\'').map_or(0, |(i, _)| i + 3),
        Some(_) => chars.next().filter(|(_, c)| *c == '\'').map_or(0, |(i, _)| i + 1),
        None => 0,
    }
}

/// `r"…"`, `r#"…"#`, `br"…"`, `cr"…"`
fn raw_string(text: &str) -> usize {
    let Some(body) = ["r", "br", "cr"].iter().find_map(|p| text.strip_prefix(p)) else { return 0 };
    let hashes = body.len() - body.trim_start_matches('#').len();
    if !body[hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let start = text.len() - body.len() + hashes + 1;
    text[start..].find(&end).map_or(text.len(), |i| start + i + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        squeeze(&Source::new("crates/x/src/lib.rs", text).code)
    }

    fn paths(text: &str) -> Vec<String> {
        Source::new("crates/x/src/lib.rs", text).paths().into_iter().map(|(_, path)| path).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        assert_eq!(code("a // b\nc /* d /* e */ f */ g"), "acg");
        assert_eq!(code(r#"a("b \" c", 'd', '\'', '"', '\u{1F600}', 'ü') + e"#), "a(,,,,,)+e");
        assert_eq!(code(r##"a(r"b\", br#"c " d"#, b"e") + f"##), "a(,,b)+f");
    }

    #[test]
    fn lifetimes_are_no_characters() {
        assert_eq!(code("fn f<'a>(x: &'a str) -> &'a str { x }"), "fnf<'a>(x:&'astr)->&'astr{x}");
    }

    #[test]
    fn lines_stay_where_they_were() {
        let source = Source::new("a.rs", "/* one\ntwo */\n\"three\nfour\"\nunsafe {}");
        assert_eq!(source.words("unsafe").map(|at| source.line_of(at)).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn use_trees_are_unfolded() {
        let found = paths("use std::{fs, io::{self, Read as _}, net::TcpStream};");
        for path in ["std::fs", "std::io::Read", "std::net::TcpStream"] {
            assert!(found.iter().any(|f| f == path), "{path} in {found:?}");
        }
    }

    #[test]
    fn items_for_tests_do_not_count() {
        let text =
            "use a::b;\n#[cfg(test)]\nuse c::d;\n#[cfg(test)]\nmod tests {\n use e::f; fn g() { { } }\n}\nuse h::i;";
        assert_eq!(paths(text), ["a::b", "h::i", "a::b", "h::i"]);
        assert_eq!(Source::new("a.rs", text).lines_without_tests(), 2);
    }

    #[test]
    fn modules_in_files_of_their_own_can_be_for_tests() {
        let root = Source::new("crates/x/src/lib.rs", "#[cfg(test)]\nmod fakes;");
        assert_eq!(root.declared_test_modules(), ["crates/x/src/fakes"]);
        let module = Source::new("crates/x/src/y.rs", "#[cfg(test)]\nmod z;");
        assert_eq!(module.declared_test_modules(), ["crates/x/src/y/z"]);
    }
}
