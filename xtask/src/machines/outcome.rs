//! What a machine printed about the sentences.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Whether a sentence is true on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    True,
    False(String),
    /// The machine lacks something that the sentence is about.
    Skipped(String),
}

/// The results of one machine.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) machine: String,
    /// Versions of the kernel and of programs, and modes.
    pub(super) facts: BTreeMap<String, String>,
    /// In the order of the suite.
    pub(super) sentences: Vec<(String, Verdict)>,
    is_whole: bool,
}

impl Outcome {
    pub(super) fn new(machine: &str) -> Self {
        Self { machine: machine.to_owned(), facts: BTreeMap::new(), sentences: Vec::new(), is_whole: false }
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

    /// Adds what the machine itself does not know.
    pub(super) fn add_fact(&mut self, name: &str, text: String) {
        self.facts.insert(name.to_owned(), text);
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

    /// These results with those of a later run, which has a part of the sentences.
    pub(super) fn updated(mut self, later: &Self) -> Self {
        self.facts
            .extend(later.facts.iter().filter(|(name, _)| *name != "minutes").map(|(a, b)| (a.clone(), b.clone())));
        for (name, verdict) in &later.sentences {
            match self.sentences.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => *known = verdict.clone(),
                None => self.sentences.push((name.clone(), verdict.clone())),
            }
        }
        self
    }

    /// What [`Outcome::to_json`] wrote.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let value: Value = serde_json::from_str(&text)?;
        let sentence = |value: &Value| -> Option<(String, Verdict)> {
            let why = value["why"].as_str()?.to_owned();
            let verdict = match value["result"].as_str()? {
                "true" => Verdict::True,
                "false" => Verdict::False(why),
                _ => Verdict::Skipped(why),
            };
            Some((value["sentence"].as_str()?.to_owned(), verdict))
        };
        let parse = || -> Option<Self> {
            Some(Self {
                machine: value["machine"].as_str()?.to_owned(),
                facts: serde_json::from_value(value["facts"].clone()).ok()?,
                sentences: value["sentences"].as_array()?.iter().map(sentence).collect::<Option<_>>()?,
                is_whole: true,
            })
        };
        parse().with_context(|| format!("{} holds no results", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_facts_and_verdicts_also_from_a_file() {
        let mut outcome = Outcome::new("a");
        for line in ["fact kernel: 6.1", "true it_mounts", "skipped it_runs: no crun|", "false it_reads: EIO: x"] {
            outcome.note(line);
        }
        assert!(!outcome.is_whole());
        assert_eq!(outcome.note("end"), Some("end".to_owned()));
        assert!(outcome.is_whole());
        assert_eq!((outcome.failures(), &*outcome.sum()), (1, "1 true, 1 false, 1 skipped"));
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), outcome.to_json().to_string()).unwrap();
        let read = Outcome::read(file.path()).unwrap();
        assert_eq!((read.facts, read.sentences), (outcome.facts, outcome.sentences));
    }

    #[test]
    fn a_later_run_of_some_sentences_replaces_their_results() {
        let [mut first, mut later] = [Outcome::new("a"), Outcome::new("a")];
        for line in ["fact minutes: 9", "true it_mounts", "false it_runs: no crun"] {
            first.note(line);
        }
        for line in ["fact minutes: 1", "true it_runs", "true it_reads"] {
            later.note(line);
        }
        let all = first.updated(&later);
        assert_eq!((&*all.sum(), &*all.facts["minutes"]), ("3 true, 0 false, 0 skipped", "9"));
    }
}
