//! The report page.

use std::fmt::Write;

use serde_json::Value;

use super::section::{Part, Section};
use crate::chart::escaped;
use crate::runs::{Runs, text};

const HEAD: &str = "<!doctype html>\n<html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>\
<title>How fast tarpon is</title><style>\
:root{color-scheme:light dark;--page:#fff;--ink:#1f2328;--faint:#59636e;--rule:#d1d9e0}\
@media (prefers-color-scheme:dark){:root{--page:#0d1117;--ink:#f0f6fc;--faint:#9198a1;--rule:#3d444d}}\
body{background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em}\
h1,h2{line-height:1.2}h2{margin-top:2em;border-bottom:1px solid var(--rule)}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;margin:1em 0}\
th,td{border:1px solid var(--rule);padding:.2em .6em;text-align:left;font-variant-numeric:tabular-nums}td.number,th.number{text-align:right}\
.pictures{display:flex;flex-wrap:wrap;gap:1em}svg{max-width:100%;height:auto}.about{color:var(--faint);font-size:13px}pre{overflow-x:auto}\
</style><h1>How fast tarpon is</h1>";

/// The page so far.
#[derive(Default)]
pub(super) struct Page(String);

impl Page {
    /// Adds the results of one benchmark, which are in the file of this name and which this command makes.
    pub(super) fn add(&mut self, name: &str, command: &str, runs: &Runs, section: &Section) {
        let mut page = format!("<h2>{}</h2>{}", escaped(section.title), about(name, command, runs));
        for part in &section.parts {
            page.push_str(&match part {
                Part::Heading(words) => format!("<h3>{}</h3>", escaped(words)),
                Part::Text(words) => format!("<p>{}</p>", escaped(words).replace('\n', "<br>")),
                Part::Table(table) => format!("<div class='wide'>{}</div>", self::table(table)),
                Part::LongTable(name, table) => {
                    let (name, table) = (escaped(name), self::table(table));
                    format!("<details><summary>{name}</summary><div class='wide'>{table}</div></details>")
                }
                Part::Pictures(pictures) => {
                    let drawn: String = pictures.iter().map(|picture| picture.svg.as_str()).collect();
                    format!("<div class='pictures'>{drawn}</div>")
                }
            });
        }
        self.0.push_str(&page);
    }

    pub(super) fn finish(self) -> String {
        format!("{HEAD}{}</html>\n", self.0)
    }
}

/// The commands, the machine and the programs behind the figures.
fn about(name: &str, command: &str, runs: &Runs) -> String {
    let usual = format!("cargo xtask {command}");
    let unknown = Value::Null;
    let headers = if runs.headers.is_empty() { vec![&unknown] } else { runs.headers.iter().collect() };
    let mut words = String::from("<p class='about'>");
    for (number, header) in (1..).zip(&headers) {
        let number = if headers.len() > 1 { format!("Command {number}: ") } else { String::new() };
        let command = escaped(&or(header, "command", &usual));
        // Writing to a string cannot fail.
        let _ = write!(words, "{number}<code>{command}</code>, {}<br>", one(header));
    }
    let _ = write!(words, "Every run: <a href='{name}.jsonl'>{name}.jsonl</a></p>");
    words
}

/// Date, machine and programs of one command.
fn one(header: &Value) -> String {
    let machine = &header["machine"];
    let memory = machine["memory"].as_f64().map(|bytes| format!("{:.0} GiB", bytes / f64::from(1 << 30)));
    let mut words = format!(
        "{}; {}, {} cores, {}, Linux {}",
        escaped(&or(header, "date", "no date")),
        escaped(&or(machine, "processor", "some processor")),
        escaped(&or(machine, "cores", "?")),
        memory.unwrap_or_else(|| "some memory".to_owned()),
        escaped(&or(machine, "kernel", "?")),
    );
    if let Some(commit) = header["commit"].as_str() {
        // Writing to a string cannot fail.
        let _ = write!(words, "; commit {}", escaped(commit));
    }
    let versions = machine["programs"].as_object().into_iter().flatten().filter_map(|(_, version)| version.as_str());
    for version in versions.filter(|version| !version.is_empty()) {
        let _ = write!(words, "; {}", escaped(version));
    }
    words
}

fn or(value: &Value, field: &str, other: &str) -> String {
    if value.get(field).is_some() { text(value, field) } else { other.to_owned() }
}

/// Converts a table of a benchmark to HTML.
fn table(lines: &str) -> String {
    let mut rows = lines
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| -> Vec<&str> { line.trim_matches('|').split('|').map(str::trim).collect() });
    let (Some(head), Some(rule)) = (rows.next(), rows.next()) else { return String::new() };
    let class =
        |column: usize| if rule.get(column).is_some_and(|rule| rule.ends_with(':')) { " class='number'" } else { "" };
    let row = |cells: &[&str], kind: &str| -> String {
        let cell = |(column, words): (usize, &&str)| format!("<{kind}{}>{}</{kind}>", class(column), escaped(words));
        format!("<tr>{}</tr>", cells.iter().enumerate().map(cell).collect::<String>())
    };
    let body: String = rows.map(|cells| row(&cells, "td")).collect();
    format!("<table>{}{body}</table>", row(&head, "th"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_shown_with_its_own_machine() {
        let header =
            |command: &str, cores: u32| format!("{{\"command\":\"{command}\",\"machine\":{{\"cores\":{cores}}}}}\n");
        let page = about("start", "bench start", &Runs::parse(&(header("first", 2) + &header("second", 4))).unwrap());
        assert!(page.contains("Command 1: <code>first</code>, no date; some processor, 2 cores"), "{page}");
        assert!(page.contains("Command 2: <code>second</code>, no date; some processor, 4 cores"), "{page}");
        assert!(
            about("start", "bench start", &Runs::parse("").unwrap()).contains("<code>cargo xtask bench start</code>")
        );
    }

    #[test]
    fn the_commit_and_versions_are_shown_and_empty_ones_are_not() {
        let header = r#"{"commit":"abc-dirty","machine":{"programs":{"crun":"crun 1","sh":""}}}"#;
        let page = about("start", "bench start", &Runs::parse(header).unwrap());
        assert!(page.contains("; commit abc-dirty; crun 1<br>"), "{page}");
    }

    #[test]
    fn figures_of_a_table_stand_at_the_right() {
        let page = table("| what | s |\n|---|--:|\n| a<b | 1.5 |\n");
        assert!(page.contains("<td>a&lt;b</td><td class='number'>1.5</td>"), "{page}");
        assert!(page.contains("<th class='number'>s</th>"), "{page}");
    }
}
