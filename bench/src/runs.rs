//! The file of a benchmark: headers, each with the runs and links of its command ([`Log`]).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;
pub(super) use tarpon_harness::results::Log;

/// A file of this benchmark to which runs are added, with a header for this command and machine.
pub(super) fn begin(path: &Path, programs: &[&Path], adds: bool) -> Result<Log> {
    Log::begin(path, "cargo xtask bench", programs, adds)
}

/// The field, added when a line is read, with the number of its command: the number of headers before it.
const COMMAND: &str = "of command";

/// The lines of a file.
pub(super) struct Runs {
    /// The header of each command that wrote to the file.
    pub(super) headers: Vec<Value>,
    pub(super) lines: Vec<Value>,
}

impl Runs {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no file of a benchmark", path.display()))
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let line = |line: &str| serde_json::from_str(line).with_context(|| format!("not a line of it: {line}"));
        let (mut headers, mut lines) = (Vec::new(), Vec::new());
        for parsed in text.lines().map(line) {
            let mut parsed: Value = parsed?;
            if parsed.get("machine").is_some() {
                headers.push(parsed);
                continue;
            }
            let Some(fields) = parsed.as_object_mut() else { bail!("not a line of it: {parsed}") };
            fields.insert(COMMAND.to_owned(), headers.len().into());
            lines.push(parsed);
        }
        Ok(Self { headers, lines })
    }

    /// The headers of the commands that wrote matching lines, in the order of the file.
    pub(super) fn headers_of(&self, is_of: impl Fn(&Value) -> bool) -> Vec<&Value> {
        let wanted: BTreeSet<u64> = self.lines.iter().filter(|line| is_of(line)).filter_map(command_of).collect();
        (1..).zip(&self.headers).filter(|(number, _)| wanted.contains(number)).map(|(_, header)| header).collect()
    }

    /// The lines that have all of these fields, grouped by their values, in the order of first appearance.
    pub(super) fn cells<const N: usize>(&self, fields: [&str; N]) -> Vec<([String; N], Vec<&Value>)> {
        let mut cells: Vec<([String; N], Vec<&Value>)> = Vec::new();
        for line in &self.lines {
            if fields.iter().any(|field| line.get(field).is_none()) {
                continue;
            }
            let key = fields.map(|field| text(line, field));
            match cells.iter_mut().find(|(known, _)| *known == key) {
                Some((_, lines)) => lines.push(line),
                None => cells.push((key, vec![line])),
            }
        }
        cells
    }

    /// The distinct values of a field, in the order of first appearance.
    pub(super) fn values(&self, field: &str) -> Vec<String> {
        self.cells([field]).into_iter().map(|([value], _)| value).collect()
    }
}

/// A field as text.
pub(super) fn text(line: &Value, field: &str) -> String {
    match &line[field] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// All figures of a field.
pub(super) fn figures(lines: &[&Value], field: &str) -> Vec<f64> {
    lines.iter().filter_map(|line| line[field].as_f64()).collect()
}

/// Identifies a run: the number of its command in the file, and its number within the command.
pub(super) type Number = (u64, u64);

/// All figures of a field with the numbers of their runs.
pub(super) fn numbered(lines: &[&Value], field: &str) -> Vec<(Number, f64)> {
    let number = |line: &Value| Some((command_of(line)?, line["number"].as_u64()?));
    lines.iter().filter_map(|line| Some((number(line)?, line[field].as_f64()?))).collect()
}

/// The number of a line's command in the file, from 1.
pub(super) fn command_of(line: &Value) -> Option<u64> {
    line[COMMAND].as_u64()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn runs_are_found_by_their_fields_in_the_order_of_the_file() {
        let text = "{\"machine\":{}}\n{\"link\":\"l\"}\n{\"link\":\"l\",\"system\":\"b\",\"number\":1,\"ready\":2.5}\n\
                    {\"link\":\"l\",\"system\":\"a\",\"number\":1,\"error\":\"no\"}\n\
                    {\"link\":\"l\",\"system\":\"b\",\"number\":2,\"ready\":1}\n";
        let runs = Runs::parse(text).unwrap();
        assert_eq!(runs.headers.len(), 1);
        let cells = runs.cells(["link", "system"]);
        assert_eq!(cells.iter().map(|(key, _)| key[1].as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(figures(&cells[0].1, "ready"), [2.5, 1.0]);
        assert_eq!(numbered(&cells[0].1, "ready"), [((1, 1), 2.5), ((1, 2), 1.0)]);
        assert!(figures(&cells[1].1, "ready").is_empty());
        assert_eq!(runs.values("link"), ["l"]);
    }

    #[test]
    fn what_a_second_command_adds_stands_behind_what_the_first_one_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("start.jsonl");
        for (adds, ready) in [(false, 1), (false, 2), (true, 3)] {
            begin(&file, &[], adds).unwrap().add(&json!({"ready": ready})).unwrap();
        }
        let runs = Runs::read(&file).unwrap();
        assert_eq!((runs.headers.len(), runs.values("ready")), (2, vec!["2".to_owned(), "3".to_owned()]));
    }

    #[test]
    fn a_line_belongs_to_the_command_before_it() {
        let text = "{\"machine\":1}\n{\"number\":1,\"s\":1}\n{\"machine\":2}\n{\"number\":1,\"s\":2,\"link\":\"l\"}\n";
        let runs = Runs::parse(text).unwrap();
        assert_eq!(numbered(&runs.lines.iter().collect::<Vec<_>>(), "s"), [((1, 1), 1.0), ((2, 1), 2.0)]);
        assert_eq!(runs.headers_of(|line| line.get("link").is_some()), [&json!({"machine": 2})]);
        assert_eq!(runs.headers_of(|_| true).len(), 2);
    }

    #[test]
    fn what_is_no_json_is_named() {
        let error = Runs::parse("{}\nnonsense\n").err().unwrap();
        assert!(format!("{error:#}").contains("nonsense"));
    }
}
