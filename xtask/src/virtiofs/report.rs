//! The findings of a command, a line each: printed, and in the file of the measurement.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use tarpon_harness::results::Log;

/// Writes findings to the file, and counts them.
pub(super) struct Report {
    log: Log,
    /// Facts that hold for all starts of the command: version and cache of virtiofsd.
    facts: Value,
    run: u32,
    checked: usize,
    failed: usize,
}

impl Report {
    /// Begins a file for a command with these programs, or adds to it.
    pub(super) fn begin(file: &Path, programs: &[&Path], facts: Value, adds: bool) -> Result<Self> {
        let log = Log::begin(file, "cargo xtask", programs, adds)?;
        Ok(Self { log, facts, run: 0, checked: 0, failed: 0 })
    }

    /// The findings from here on belong to the next run.
    pub(super) fn next_run(&mut self) {
        self.run += 1;
    }

    /// Adds and prints a sentence that must be true.
    pub(super) fn check(&mut self, sentence: &str, is_true: bool, detail: &str) -> Result<()> {
        println!("{}: {sentence}: {detail}", if is_true { "yes" } else { "NO" });
        self.checked += 1;
        self.failed += usize::from(!is_true);
        self.log.add(&json!({ "check": sentence, "is_true": is_true, "detail": detail, "number": self.run }))
    }

    /// Adds and prints what may be so or otherwise.
    pub(super) fn remark(&mut self, remark: &str) -> Result<()> {
        println!("{remark}");
        self.log.add(&json!({ "remark": remark, "number": self.run }))
    }

    /// Adds the figures of a start, with the facts.
    pub(super) fn start(&mut self, mut figures: Value) -> Result<()> {
        figures["number"] = self.run.into();
        for (name, fact) in self.facts.as_object().into_iter().flatten() {
            figures[name] = fact.clone();
        }
        self.log.add(&figures)
    }

    pub(super) fn failures(&self) -> usize {
        self.failed
    }

    /// The number of sentences, for the last line.
    pub(super) fn sum(&self) -> String {
        format!("{} of {} sentences are true", self.checked - self.failed, self.checked)
    }
}

/// Bytes as MiB.
pub(super) fn mib(bytes: u64) -> String {
    format!("{}.{:02} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 100) >> 20)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn findings_are_in_the_file_with_their_run_and_those_that_are_not_true_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("virtiofs.jsonl");
        let mut report = Report::begin(&file, &[], json!({ "cache": "always" }), false).unwrap();
        report.next_run();
        report.check("it boots", true, "30 s").unwrap();
        report.next_run();
        report.check("it is equal", false, "/usr differs").unwrap();
        report.start(json!({ "workload": "sh" })).unwrap();
        assert_eq!((report.failures(), report.sum()), (1, "1 of 2 sentences are true".to_owned()));
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<Value> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["number"], 1);
        assert_eq!(
            lines[1],
            json!({ "check": "it is equal", "is_true": false, "detail": "/usr differs", "number": 2 })
        );
        assert_eq!(lines[2], json!({ "workload": "sh", "cache": "always", "number": 2 }));
    }

    #[test]
    fn bytes_are_shown_with_hundredths() {
        assert_eq!(
            (mib(0), mib(3 << 19), mib((1 << 20) - 1)),
            ("0.00 MiB".into(), "1.50 MiB".into(), "0.99 MiB".into())
        );
    }
}
