//! The results of all machines as tables in Markdown, and back: the document keeps results from one checkout to the next.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

use super::outcome::{Outcome, Verdict};
use super::suites;

/// Where the tables begin and end in docs/machines.md.
pub(super) const MARKS: [&str; 2] = ["<!-- results -->\n", "<!-- end of results -->\n"];

const TRUE: &str = "yes";
const FALSE: &str = "**no**";
const SKIPPED: &str = "–";

/// Two tables with a column for each machine: a row for each fact, then one for each sentence; and the reasons why a
/// sentence is not true, or was skipped. A cell is empty if the machine was not asked.
pub(super) fn write(outcomes: &[Outcome]) -> String {
    let mut facts: Vec<_> = outcomes.iter().flat_map(|outcome| outcome.facts.keys()).collect();
    facts.sort_unstable();
    facts.dedup();
    let mut text = String::new();
    head(&mut text, outcomes);
    for fact in facts {
        row(&mut text, fact, outcomes, |outcome| outcome.facts.get(fact).cloned().unwrap_or_default());
    }
    text.push('\n');
    let mut sentences: Vec<&String> = Vec::new();
    for (name, _) in outcomes.iter().flat_map(|outcome| &outcome.sentences) {
        if !sentences.contains(&name) {
            sentences.push(name);
        }
    }
    sentences.sort_by_key(|name| suites::position(name));
    head(&mut text, outcomes);
    for sentence in sentences {
        row(&mut text, sentence, outcomes, |outcome| mark(outcome, sentence).to_owned());
    }
    text.push('\n');
    for outcome in outcomes {
        for (name, verdict) in &outcome.sentences {
            let (kind, why) = match verdict {
                Verdict::True => continue,
                Verdict::False(why) => (FALSE, why),
                Verdict::Skipped(why) => (SKIPPED, why),
            };
            let _ = writeln!(text, "{}{}", reason(&outcome.machine, name, kind), why.trim_end_matches('|'));
        }
    }
    text
}

fn mark(outcome: &Outcome, sentence: &str) -> &'static str {
    match outcome.sentences.iter().find(|(name, _)| name == sentence) {
        Some((_, Verdict::True)) => TRUE,
        Some((_, Verdict::False(_))) => FALSE,
        Some((_, Verdict::Skipped(_))) => SKIPPED,
        None => "",
    }
}

/// The beginning of the line with the reason.
fn reason(machine: &str, sentence: &str, kind: &str) -> String {
    format!("- {machine}, {sentence}: {kind}, ")
}

fn head(text: &mut String, outcomes: &[Outcome]) {
    row(text, "", outcomes, |outcome| outcome.machine.clone());
    let _ = writeln!(text, "|---|{}", "---|".repeat(outcomes.len()));
}

fn row(text: &mut String, first: &str, outcomes: &[Outcome], cell: impl Fn(&Outcome) -> String) {
    let cells = outcomes.iter().map(|outcome| format!(" {} |", cell(outcome))).collect::<String>();
    let _ = writeln!(text, "| {first} |{cells}");
}

/// What [`write()`] wrote.
pub(super) fn read(text: &str) -> Result<Vec<Outcome>> {
    let mut blocks = text.trim().split("\n\n");
    let (facts, sentences) = blocks.next().zip(blocks.next()).context("there are no two tables")?;
    let reasons = blocks.next().unwrap_or_default();
    let (machines, facts) = table(facts)?;
    let (of_sentences, sentences) = table(sentences)?;
    if machines != of_sentences {
        bail!("the tables have different machines");
    }
    let outcome = |(column, machine): (usize, &&str)| {
        let mut outcome = Outcome::new(machine);
        for (name, cells) in facts.iter().filter(|(_, cells)| !cells[column].is_empty()) {
            outcome.add_fact(name, cells[column].to_owned());
        }
        for (name, cells) in &sentences {
            let why = || {
                let start = reason(machine, name, cells[column]);
                reasons.lines().find_map(|line| line.strip_prefix(&*start)).unwrap_or_default().to_owned()
            };
            let verdict = match cells[column] {
                TRUE => Verdict::True,
                FALSE => Verdict::False(why()),
                SKIPPED => Verdict::Skipped(why()),
                "" => continue,
                other => bail!("{name} is neither true nor false nor skipped: {other}"),
            };
            outcome.sentences.push(((*name).to_owned(), verdict));
        }
        Ok(outcome)
    };
    machines.iter().enumerate().map(outcome).collect()
}

/// The first column and the others of a row.
type Row<'a> = (&'a str, Vec<&'a str>);

/// The machines of a table, and its rows.
fn table(text: &str) -> Result<(Vec<&str>, Vec<Row<'_>>)> {
    let mut lines = text.lines();
    let (_, machines) = cells(lines.next().unwrap_or_default())?;
    let rows = lines.skip(1).map(cells).collect::<Result<Vec<_>>>()?;
    if rows.iter().any(|(_, cells)| cells.len() != machines.len()) {
        bail!("the rows of a table differ in length");
    }
    Ok((machines, rows))
}

fn cells(line: &str) -> Result<Row<'_>> {
    let inner = line.strip_prefix('|').and_then(|line| line.strip_suffix('|'));
    let mut cells = inner.with_context(|| format!("this is no row of a table: {line}"))?.split('|').map(str::trim);
    let first = cells.next().unwrap_or_default();
    Ok((first, cells.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(machine: &str, lines: &[&str]) -> Outcome {
        let mut outcome = Outcome::new(machine);
        for line in lines {
            outcome.note(line);
        }
        outcome
    }

    #[test]
    fn tables_have_a_column_for_each_machine_and_the_reasons() {
        let lines = ["fact kernel: 6.1", "true it_mounts", "skipped it_runs: no crun|", "false it_reads: EIO: x"];
        let wanted = "|  | a |\n|---|---|\n| kernel | 6.1 |\n\n|  | a |\n|---|---|\n| it mounts | yes |\n| it runs | – |\n\
                      | it reads | **no** |\n\n- a, it runs: –, no crun\n- a, it reads: **no**, EIO: x\n";
        assert_eq!(write(&[outcome("a", &lines)]), wanted);
    }

    #[test]
    fn results_are_the_same_after_they_were_written_and_read() {
        let a = outcome("a b", &["fact kernel: 6.1", "true it_mounts", "skipped it_runs: no crun, none"]);
        let b = outcome("c", &["fact minutes: 9", "false it_mounts: exit 1: a|b: c", "true it_reads"]);
        let text = write(&[a, b]);
        let read = read(&format!("\n{text}\n")).unwrap();
        assert_eq!(write(&read), text);
        assert_eq!(read[0].facts.len(), 1);
        assert_eq!(read[1].sentences[0].1, Verdict::False("exit 1: a|b: c".to_owned()));
        assert_eq!(read[0].sentences.len(), 2);
    }

    #[test]
    fn a_table_that_was_cut_is_no_result() {
        let text = write(&[outcome("a", &["fact kernel: 6.1", "true it_mounts"])]);
        assert!(read(&text.replace("| yes |", "|")).is_err());
        assert!(read(&text.replace("yes", "perhaps")).is_err());
        assert!(read("").is_err());
    }

    #[test]
    fn the_results_in_the_document_can_be_read() {
        let document = include_str!("../../../docs/machines.md");
        let (_, rest) = document.split_once(MARKS[0]).unwrap();
        let (tables, _) = rest.split_once(MARKS[1]).unwrap();
        assert_eq!(write(&read(tables).unwrap()), tables.trim_start().strip_suffix('\n').unwrap());
    }
}
