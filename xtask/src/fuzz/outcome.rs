//! The outcome of fuzzing a target, read from libFuzzer's output.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

/// The outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) target: String,
    /// Number of inputs tried.
    executions: u64,
    /// Number of code edges reached.
    coverage: u64,
    /// Inputs that reach code which no other reaches.
    corpus: u64,
    /// Inputs on which the target failed.
    findings: Vec<PathBuf>,
    is_success: bool,
    log: PathBuf,
}

impl Outcome {
    /// Parses the output of a run with `-print_final_stats=1`.
    pub(super) fn read(target: &str, output: &str, is_success: bool, findings: Vec<PathBuf>, log: PathBuf) -> Self {
        let mut outcome =
            Self { target: target.to_owned(), executions: 0, coverage: 0, corpus: 0, findings, is_success, log };
        output.lines().for_each(|line| outcome.take(line));
        outcome
    }

    fn take(&mut self, line: &str) {
        if let Some(count) = line.strip_prefix("stat::number_of_executed_units:") {
            self.executions = count.trim().parse().unwrap_or(self.executions);
        }
        // `#4096\tpulse  cov: 310 ft: 811 corp: 95/12Kb lim: 80 exec/s: 2048 rss: 90Mb`
        let Some((count, rest)) = line.strip_prefix('#').and_then(|line| line.split_once(char::is_whitespace)) else {
            return;
        };
        let (Ok(count), Some(coverage)) = (count.parse(), number_behind(rest, "cov: ")) else { return };
        (self.executions, self.coverage) = (count, coverage);
        self.corpus = number_behind(rest, "corp: ").unwrap_or(self.corpus);
    }

    /// Whether there are findings, or the run ended before its time.
    pub(super) fn has_failed(&self) -> bool {
        !self.is_success || !self.findings.is_empty()
    }

    fn verdict(&self) -> String {
        match (self.has_failed(), &self.findings[..]) {
            (false, _) => "nothing found".to_owned(),
            (true, []) => format!("failed: see {}", self.log.display()),
            (true, findings) => {
                let findings: Vec<String> = findings.iter().map(|path| path.display().to_string()).collect();
                format!("failed: {}", findings.join(", "))
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} executions, {}", self.target, self.executions, self.verdict())
    }
}

/// The number after the first `word`.
fn number_behind(text: &str, word: &str) -> Option<u64> {
    let (_, rest) = text.split_once(word)?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// All outcomes, and their sum.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let width = outcomes.iter().map(|outcome| outcome.target.len()).max().unwrap_or(0).max("target".len());
    let mut table = format!("{:width$}  {:>12}  {:>8}  {:>7}  result\n", "target", "executions", "coverage", "corpus");
    for outcome in outcomes {
        let Outcome { target, executions, coverage, corpus, .. } = outcome;
        // Writing to a string cannot fail.
        let _ = writeln!(table, "{target:width$}  {executions:>12}  {coverage:>8}  {corpus:>7}  {}", outcome.verdict());
    }
    let executions: u64 = outcomes.iter().map(|outcome| outcome.executions).sum();
    let failed = outcomes.iter().filter(|outcome| outcome.has_failed()).count();
    let _ = writeln!(table, "{:width$}  {executions:>12}  {:>8}  {:>7}  {failed} failed", "all", "", "");
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: &str = "INFO: Seed: 77\n#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 40Mb\n\
        #4096\tpulse  cov: 310 ft: 811 corp: 95/12Kb lim: 80 exec/s: 2048 rss: 90Mb\n\
        #5000\tDONE   cov: 311 ft: 812 corp: 96/12Kb lim: 80 exec/s: 2048 rss: 90Mb\nDone 5000 runs in 2 second(s)\n\
        stat::number_of_executed_units: 5000\n";
    const CRASH: &str = "#4096\tpulse  cov: 310 ft: 811 corp: 95/12Kb lim: 80 exec/s: 2048 rss: 90Mb\n\
        thread panicked\n==1== ERROR: libFuzzer: deadly signal\nstat::number_of_executed_units: 4321\n\
        Test unit written to /f/crash-1\n";

    fn outcome(output: &str, is_success: bool, findings: &[&str]) -> Outcome {
        let findings = findings.iter().map(PathBuf::from).collect();
        Outcome::read("pax", output, is_success, findings, PathBuf::from("/log"))
    }

    #[test]
    fn executions_coverage_and_corpus_of_a_quiet_run_are_parsed() {
        let quiet = outcome(QUIET, true, &[]);
        assert_eq!((quiet.executions, quiet.coverage, quiet.corpus, quiet.has_failed()), (5000, 311, 96, false));
        assert_eq!(quiet.to_string(), "pax: 5000 executions, nothing found");
    }

    #[test]
    fn a_run_that_ends_early_names_its_finding_or_its_log() {
        let crash = outcome(CRASH, false, &["/f/crash-1"]);
        assert_eq!((crash.executions, crash.coverage, crash.has_failed()), (4321, 310, true));
        assert_eq!(crash.to_string(), "pax: 4321 executions, failed: /f/crash-1");
        assert_eq!(outcome("", false, &[]).to_string(), "pax: 0 executions, failed: see /log");
        assert!(outcome(QUIET, true, &["/f/slow-unit-1"]).has_failed());
    }

    #[test]
    fn the_table_sums_up() {
        let table = table(&[outcome(QUIET, true, &[]), outcome(CRASH, false, &["/f/crash-1"])]);
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["pax", "5000", "311", "96", "nothing", "found"]);
        assert_eq!(rows[2], ["pax", "4321", "310", "95", "failed:", "/f/crash-1"]);
        assert_eq!(rows[3], ["all", "9321", "1", "failed"]);
    }
}
