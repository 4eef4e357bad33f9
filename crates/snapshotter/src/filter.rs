//! Filters of `List`, in containerd's syntax.
//!
//! ```text
//! filter   = selector { "," selector }                   all of them must match
//! selector = path [ "==" value | "!=" value | "~=" value ]     without a value: the field exists
//! path     = name { "." name },  name and value either plain or "quoted" as in Go
//! ```
//!
//! The paths are those that containerd defines for snapshots: `name`, `parent`, `kind` and `labels.NAME`. With several filters one must
//! match. Go's other quotes, `/…/` and `|…|`, are not supported and are rejected.

use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

use crate::error::{Error, Result};
use crate::record::{Kind, Record};

/// Maximum size of a compiled pattern in bytes.
const PATTERN_BYTES: usize = 1 << 20;

/// A set of filters that selects snapshots.
#[derive(Debug)]
pub(crate) struct Filters(Vec<Vec<Selector>>);

#[derive(Debug)]
struct Selector {
    path: Vec<String>,
    test: Test,
}

#[derive(Debug)]
enum Test {
    Present,
    Equal(String),
    Unequal(String),
    Matches(Regex),
}

impl Filters {
    /// Parses filters; an empty list selects all snapshots.
    pub(crate) fn parse(filters: &[String]) -> Result<Self> {
        let parse = |filter: &String| {
            Parser(filter.chars().peekable())
                .filter()
                .map_err(|problem| Error::Invalid(format!("the filter {filter:?} is not understood: {problem}")))
        };
        filters.iter().map(parse).collect::<Result<_>>().map(Self)
    }

    /// Whether a snapshot matches.
    pub(crate) fn fit(&self, record: &Record) -> bool {
        let fits = |filter: &Vec<Selector>| filter.iter().all(|selector| selector.fits(record));
        self.0.is_empty() || self.0.iter().any(fits)
    }
}

impl Selector {
    fn fits(&self, record: &Record) -> bool {
        let value = field(record, &self.path);
        match &self.test {
            Test::Present => value.is_some(),
            Test::Equal(wanted) => value == Some(wanted),
            Test::Unequal(unwanted) => value != Some(unwanted),
            Test::Matches(pattern) => value.is_some_and(|value| pattern.is_match(value)),
        }
    }
}

fn field<'a>(record: &'a Record, path: &[String]) -> Option<&'a str> {
    let (first, rest) = path.split_first()?;
    match (first.as_str(), rest) {
        ("name", []) => Some(&record.name),
        ("parent", []) => Some(&record.parent),
        ("kind", []) => Some(match record.kind {
            Kind::View => "view",
            Kind::Active => "active",
            Kind::Committed => "committed",
        }),
        ("labels", [_, ..]) => record.labels.get(&rest.join(".")).map(String::as_str),
        _ => None,
    }
}

struct Parser<'a>(Peekable<Chars<'a>>);

type Parsed<T> = std::result::Result<T, String>;

impl Parser<'_> {
    fn filter(&mut self) -> Parsed<Vec<Selector>> {
        let mut selectors = vec![self.selector()?];
        while self.take(',') {
            selectors.push(self.selector()?);
        }
        match self.0.next() {
            None => Ok(selectors),
            Some(other) => Err(format!("{other:?} is not expected there")),
        }
    }

    fn selector(&mut self) -> Parsed<Selector> {
        let mut path = vec![self.name()?];
        while self.take('.') {
            path.push(self.name()?);
        }
        let Some(operator) = self.0.next_if(|next| "=!~".contains(*next)) else {
            return Ok(Selector { path, test: Test::Present });
        };
        if !self.take('=') {
            return Err("expected ==, != or ~=".to_owned());
        }
        let value = self.value()?;
        let test = match operator {
            '=' => Test::Equal(value),
            '!' => Test::Unequal(value),
            _ => Test::Matches(
                RegexBuilder::new(&value).size_limit(PATTERN_BYTES).build().map_err(|error| error.to_string())?,
            ),
        };
        Ok(Selector { path, test })
    }

    fn name(&mut self) -> Parsed<String> {
        self.word(|character| character.is_alphanumeric() || character == '_', "a name")
    }

    fn value(&mut self) -> Parsed<String> {
        self.word(|character| character != ',' && !character.is_whitespace(), "a value")
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool, what: &str) -> Parsed<String> {
        match self.0.peek() {
            Some('"') => self.quoted(),
            Some('/' | '|') => Err("only \" quotes".to_owned()),
            _ => {
                let word: String = std::iter::from_fn(|| self.0.next_if(|next| belongs(*next))).collect();
                if word.is_empty() { Err(format!("expected {what}")) } else { Ok(word) }
            }
        }
    }

    fn quoted(&mut self) -> Parsed<String> {
        let mut bytes = Vec::new();
        self.0.next();
        loop {
            match self.0.next().ok_or("a quote is not closed")? {
                '"' => return String::from_utf8(bytes).map_err(|_| "the quoted text is not UTF-8".to_owned()),
                '\\' => self.escaped(&mut bytes)?,
                other => put(&mut bytes, other),
            }
        }
    }

    fn escaped(&mut self, bytes: &mut Vec<u8>) -> Parsed<()> {
        let kind = self.0.next().ok_or("a quote is not closed")?;
        let simple = match kind {
            'a' => 7,
            'b' => 8,
            't' => 9,
            'n' => 10,
            'v' => 11,
            'f' => 12,
            'r' => 13,
            '\\' | '"' => u8::try_from(kind).unwrap_or_default(),
            'x' => u8::try_from(self.number(2, 16, 0)?).unwrap_or_default(),
            'u' | 'U' => {
                let code = self.number(if kind == 'u' { 4 } else { 8 }, 16, 0)?;
                put(bytes, char::from_u32(code).ok_or("an escape names no character")?);
                return Ok(());
            }
            _ => {
                let first = kind.to_digit(8).ok_or_else(|| format!("\\{kind} is no escape"))?;
                u8::try_from(self.number(2, 8, first)?).map_err(|_| "an escape names no byte".to_owned())?
            }
        };
        bytes.push(simple);
        Ok(())
    }

    fn number(&mut self, digits: usize, radix: u32, begin: u32) -> Parsed<u32> {
        (0..digits).try_fold(begin, |number, _| {
            let digit = self.0.next().and_then(|next| next.to_digit(radix)).ok_or("an escape lacks digits")?;
            number.checked_mul(radix).map(|number| number + digit).ok_or_else(|| "an escape is too large".to_owned())
        })
    }

    fn take(&mut self, character: char) -> bool {
        self.0.next_if_eq(&character).is_some()
    }
}

fn put(bytes: &mut Vec<u8>, character: char) {
    bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Labels;

    fn record() -> Record {
        let labels = [("containerd.io/snapshot.ref", "sha256:aa"), ("plain", "a \"b\", c"), ("a.b", "dots")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Record::new("k8s.io/1/x", "sha256:bb", Kind::Committed, labels)
    }

    fn fits(filters: &[&str]) -> bool {
        let filters: Vec<String> = filters.iter().map(|filter| (*filter).to_owned()).collect();
        Filters::parse(&filters).unwrap().fit(&record())
    }

    #[test]
    fn filters_of_containerd_find_their_snapshots() {
        assert!(fits(&[]));
        assert!(fits(&[r#"labels."containerd.io/snapshot.ref"==sha256:aa,parent=="sha256:bb""#]));
        assert!(!fits(&[r#"labels."containerd.io/snapshot.ref"==sha256:aa,parent=="""#]));
        assert!(!fits(&[r#"labels."containerd.io/snapshot.ref"==sha256:ab"#]));
        let base = Record::new("base", "", Kind::Committed, Labels::new());
        assert!(
            Filters::parse(&[r#"parent=="""#.to_owned()]).unwrap().fit(&base),
            "the lowest layer has the parent \"\""
        );
        assert!(fits(&["kind==committed"]) && fits(&["kind!=active,name~=^k8s"]) && fits(&["kind==view", "parent"]));
        assert!(fits(&[r#"labels.plain=="a \"b\", c""#]) && fits(&[r#"labels.plain=="\x61 \u0022b\042, c""#]));
        assert!(fits(&["labels.a.b==dots"]) && fits(&["labels.none!=x"]) && !fits(&["labels.none"]) && !fits(&["x"]));
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        let wrong =
            ["", "==a", "name=a", "name==", "name==a,", "name==a b", "name==\"a", "name~=(", "name==/a/", "a..b"];
        for filter in wrong {
            let error = Filters::parse(&[filter.to_owned()]).unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{filter}: {error}");
        }
        for escape in [r"\q", r"\x1", r"\777", r"\uD800", r"\xff"] {
            assert!(Filters::parse(&[format!("name==\"{escape}\"")]).is_err(), "{escape}");
        }
    }
}
