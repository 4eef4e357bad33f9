//! The results of the suites, read from the output of the test harness.

use std::fmt::Write as _;
use std::time::Duration;

/// The results of one suite.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Cases that a suite counted, or else tests.
    pub(super) cases: u64,
    pub(super) failures: u64,
    pub(super) took: Duration,
}

impl Tally {
    /// Reads the output of a run. A program that failed without a failed test crashed.
    pub(super) fn read(output: &str, is_success: bool, took: Duration) -> Self {
        let sum =
            |word: &str| output.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse::<u64>().ok()).sum();
        let results = || output.lines().filter(|line| line.starts_with("test result: "));
        let tests = |word: &str| results().filter_map(|line| number_before(line, word)).sum::<u64>();
        let (cases, failures): (u64, u64) = (sum("cases:"), sum("failures:"));
        let (passed, failed) = (tests(" passed;"), tests(" failed;"));
        let cases = if cases == 0 { passed + failed } else { cases };
        Self { cases, failures: failures.max(failed).max(u64::from(!is_success)), took }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.cases += other.cases;
        self.failures += other.failures;
        self.took += other.took;
    }
}

/// The number that ends where `word` begins.
fn number_before(line: &str, word: &str) -> Option<u64> {
    line.split_once(word)?.0.rsplit(' ').next()?.parse().ok()
}

/// One line for each suite, and their sum.
pub(super) fn table(tallies: &[(&str, Tally)]) -> String {
    let mut sum = Tally::default();
    tallies.iter().for_each(|(_, tally)| sum.add(tally));
    let width = tallies.iter().map(|(name, _)| name.len()).max().unwrap_or_default().max("suite".len());
    let mut table = format!("{:width$}  {:>9}  {:>8}  {:>8}\n", "suite", "cases", "failures", "seconds");
    for (name, Tally { cases, failures, took }) in
        tallies.iter().map(|(name, tally)| (*name, tally)).chain([("all", &sum)])
    {
        // Writing to a string cannot fail.
        let _ = writeln!(table, "{name:width$}  {cases:>9}  {failures:>8}  {:>8.1}", took.as_secs_f64());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTED: &str = "successes:\n\n---- a stdout ----\ncases: 640\nfailures: 0\n\n---- b stdout ----\ncases: 2\n\
        test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.50s\n";
    const UNCOUNTED: &str =
        "test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.50s\n";

    fn read(output: &str, is_success: bool) -> Tally {
        Tally::read(output, is_success, Duration::from_millis(500))
    }

    #[test]
    fn a_suite_counts_its_cases_or_else_its_tests() {
        let took = Duration::from_millis(500);
        assert_eq!(read(COUNTED, true), Tally { cases: 642, failures: 0, took });
        assert_eq!(read(UNCOUNTED, false), Tally { cases: 6, failures: 1, took });
        assert_eq!(read(&COUNTED.replace("failures: 0", "failures: 3"), false).failures, 3);
        assert_eq!(read("running 1 test\n", false).failures, 1, "it crashed");
    }

    #[test]
    fn the_table_ends_with_the_sum() {
        let table = table(&[("one", read(COUNTED, true)), ("another", read(UNCOUNTED, false))]);
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["one", "642", "0", "0.5"]);
        assert_eq!(rows[3], ["all", "648", "1", "1.0"]);
    }
}
