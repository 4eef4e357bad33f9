//! What a machine printed about the sentences.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

/// Whether a sentence is true on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    True,
    False(String),
    /// The machine lacks something that the sentence is about.
    Skipped(String),
}

/// The results of one machine.
#[derive(Debug)]
pub(super) struct Outcome {
    machine: &'static str,
    /// Versions of the kernel and of programs, and modes.
    facts: BTreeMap<String, String>,
    /// In the order of the suite.
    sentences: Vec<(String, Verdict)>,
    is_whole: bool,
}

impl Outcome {
    pub(super) fn new(machine: &'static str) -> Self {
        Self { machine, facts: BTreeMap::new(), sentences: Vec::new(), is_whole: false }
    }

    /// Notes a message of the machine. Returns it if a user wants to see it at once.
    pub(super) fn note(&mut self, line: &str) -> Option<String> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, text) = rest.split_once(": ").unwrap_or((rest, ""));
        let (name, text) = (name.replace('_', " "), text.to_owned());
        match kind {
            "fact" => {
                self.facts.insert(name, text);
                return None;
            }
            "true" => self.sentences.push((name, Verdict::True)),
            "false" => self.sentences.push((name, Verdict::False(text))),
            "skipped" => self.sentences.push((name, Verdict::Skipped(text))),
            "end" => self.is_whole = true,
            _ => {}
        }
        (kind != "true").then(|| line.to_owned())
    }

    /// Whether the suite ran to its end.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    pub(super) fn failures(&self) -> usize {
        self.sentences.iter().filter(|(_, verdict)| matches!(verdict, Verdict::False(_))).count()
    }

    pub(super) fn sum(&self) -> String {
        let count = |is: fn(&Verdict) -> bool| self.sentences.iter().filter(|(_, verdict)| is(verdict)).count();
        let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
        format!("{} true, {} false, {skipped} skipped", count(|it| *it == Verdict::True), self.failures())
    }

    fn of(&self, sentence: &str) -> &'static str {
        match self.sentences.iter().find(|(name, _)| name == sentence) {
            Some((_, Verdict::True)) => "yes",
            Some((_, Verdict::False(_))) => "**no**",
            Some((_, Verdict::Skipped(_))) | None => "–",
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let sentences = self.sentences.iter().map(|(name, verdict)| {
            let (result, why) = match verdict {
                Verdict::True => ("true", ""),
                Verdict::False(why) => ("false", &**why),
                Verdict::Skipped(why) => ("skipped", &**why),
            };
            json!({ "sentence": name, "result": result, "why": why })
        });
        json!({ "machine": self.machine, "facts": self.facts, "sentences": sentences.collect::<Vec<_>>() })
    }
}

/// A table in Markdown: a row for each fact and each sentence, a column for each machine.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let mut table = String::from("| |");
    let mut row = |first: &str, cell: &dyn Fn(&Outcome) -> String| {
        let cells = outcomes.iter().map(|outcome| format!(" {} |", cell(outcome))).collect::<String>();
        let _ = writeln!(table, "{first}{cells}");
    };
    row("", &|outcome| outcome.machine.to_owned());
    row("|---|", &|_| "---".to_owned());
    let mut facts: Vec<_> = outcomes.iter().flat_map(|outcome| outcome.facts.keys()).collect();
    facts.sort_unstable();
    facts.dedup();
    for fact in facts {
        row(&format!("| {fact} |"), &|outcome| outcome.facts.get(fact).cloned().unwrap_or_default());
    }
    let mut sentences: Vec<&String> = Vec::new();
    for (name, _) in outcomes.iter().flat_map(|outcome| &outcome.sentences) {
        if !sentences.contains(&name) {
            sentences.push(name);
        }
    }
    for sentence in sentences {
        row(&format!("| {sentence} |"), &|outcome| outcome.of(sentence).to_owned());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_facts_and_verdicts_and_a_table() {
        let mut outcome = Outcome::new("a");
        for line in ["fact kernel: 6.1", "true it_mounts", "skipped it_runs: no crun", "false it_reads: EIO: x"] {
            outcome.note(line);
        }
        assert!(!outcome.is_whole());
        assert_eq!(outcome.note("end"), Some("end".to_owned()));
        assert!(outcome.is_whole());
        assert_eq!((outcome.failures(), &*outcome.sum()), (1, "1 true, 1 false, 1 skipped"));
        let table = table(&[outcome]);
        assert_eq!(
            table,
            "| | a |\n|---| --- |\n| kernel | 6.1 |\n| it mounts | yes |\n| it runs | – |\n| it reads | **no** |\n"
        );
    }
}
