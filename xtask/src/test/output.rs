//! Parses the output of the test harness.
//!
//! A test that cannot run on this machine prints a line that starts with `skipped:` and returns, because the harness
//! has no third outcome. Therefore the output of passed tests is requested, searched for that line, and not shown.

use super::count::Count;

/// Lines of a failure that are repeated at the end, for readers who see only the end.
const FAILURE_LINES: usize = 12;
/// Maximum length of such a line in characters: it may be a whole log.
const FAILURE_LINE_CHARACTERS: usize = 400;

/// Parses the output of one run of the test harness, line by line.
#[derive(Default)]
pub(super) struct Reader {
    section: Section,
    count: Count,
    /// The name of each failed test, followed by the last lines that it printed.
    failures: Vec<Vec<String>>,
    /// Each test that skipped itself, as `TEST: REASON`.
    skips: Vec<String>,
    /// Number of skips since the last result.
    skipped_themselves: usize,
    /// Number of `test result:` lines.
    results: usize,
}

/// A summary of one run of the harness.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) count: Count,
    /// The name of each failed test, followed by the last lines that it printed.
    pub(super) failures: Vec<Vec<String>>,
    /// Each test that skipped itself, as `TEST: REASON`.
    pub(super) skips: Vec<String>,
    /// Whether the harness ran to its end.
    pub(super) is_complete: bool,
}

/// The part of the output that a line belongs to.
#[derive(Default, PartialEq, Eq)]
enum Section {
    /// Names and outcomes.
    #[default]
    Shown,
    /// The output of tests that failed.
    Failed { is_informative: bool },
    /// The output of a test that passed, which may have skipped itself.
    Passed { test: String, skipped: bool },
}

impl Reader {
    /// Processes a line and returns the text to show for it.
    pub(super) fn line(&mut self, line: &str) -> Option<String> {
        if line.starts_with("test result: ") {
            self.section = Section::Shown;
            self.result(line);
            let nothing = line.contains(" 0 passed; 0 failed; 0 ignored;");
            return (!nothing).then(|| line.to_owned());
        }
        match (line, &mut self.section) {
            ("successes:", _) => {
                self.section = Section::Passed { test: String::new(), skipped: false };
                None
            }
            ("failures:", _) => {
                self.section = Section::Failed { is_informative: false };
                Some(line.to_owned())
            }
            (_, Section::Shown) => is_news(line).then(|| line.to_owned()),
            (_, Section::Failed { .. }) => {
                self.failure(line);
                is_news(line).then(|| line.to_owned())
            }
            (_, Section::Passed { test, skipped }) => {
                if let Some(name) = heading(line) {
                    self.section = Section::Passed { test: name.to_owned(), skipped: false };
                    return None;
                }
                let reason = line.strip_prefix("skipped:")?;
                if !std::mem::replace(skipped, true) {
                    self.skipped_themselves += 1;
                    let skip = format!("{test}:{reason}");
                    self.skips.push(skip.clone());
                    return Some(format!("skipped {skip}"));
                }
                None
            }
        }
    }

    /// Keeps the message of a failed test: the lines from the panic on, without the backtrace.
    fn failure(&mut self, line: &str) {
        let Section::Failed { is_informative } = &mut self.section else { return };
        if let Some(name) = heading(line) {
            *is_informative = false;
            self.failures.push(vec![name.to_owned()]);
        }
        let Some(lines) = self.failures.last_mut() else { return };
        *is_informative |= line.contains(" panicked at ");
        *is_informative &= line != "stack backtrace:" && !line.starts_with("note: ") && lines.len() <= FAILURE_LINES;
        if *is_informative && !line.is_empty() {
            lines.push(line.chars().take(FAILURE_LINE_CHARACTERS).collect());
        }
    }

    /// Adds `test result: ok. 3 passed; 0 failed; 1 ignored; …` to the count.
    fn result(&mut self, line: &str) {
        let number = |word: &str| -> usize {
            let part = line.split([';', '.']).find(|part| part.trim_end().ends_with(word));
            part.and_then(|p| p.split_whitespace().next()).and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        let skipped = std::mem::take(&mut self.skipped_themselves);
        self.results += 1;
        self.count += Count {
            passed: number(" passed").saturating_sub(skipped),
            failed: number(" failed"),
            skipped: number(" ignored") + skipped,
        };
    }

    pub(super) fn report(self) -> Report {
        let Self { count, failures, skips, results, .. } = self;
        Report { count, failures, skips, is_complete: results > 0 }
    }
}

/// The test whose output follows.
fn heading(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Whether a line is of interest. The harness prints a line for each passed test; those are omitted.
fn is_news(line: &str) -> bool {
    !(line.is_empty() || line.starts_with("running ") || line.starts_with("test ") && line.ends_with(" ... ok"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 4 tests
test a_works ... ok
test b_is_not_possible_here ... ok
test c_breaks ... FAILED
test d_is_slow ... ignored

successes:

---- a_works stdout ----
some noise
---- b_is_not_possible_here stdout ----
skipped: not root
skipped: again

successes:
    a_works
    b_is_not_possible_here

failures:

---- c_breaks stdout ----
before
thread 'c_breaks' (7) panicked at src/lib.rs:1:2:
assertion failed
stack backtrace:
   0: somewhere

failures:
    c_breaks

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    fn read(output: &str) -> (Vec<String>, Count) {
        let mut reader = Reader::default();
        let shown = output.lines().filter_map(|line| reader.line(line)).collect();
        (shown, reader.report().count)
    }

    #[test]
    fn a_test_that_skipped_itself_counts_as_skipped_once() {
        let (_, count) = read(OUTPUT);
        assert_eq!(count, Count { passed: 1, failed: 1, skipped: 2 });
    }

    #[test]
    fn skips_are_kept_with_their_reasons_and_a_run_without_a_result_is_incomplete() {
        let mut reader = Reader::default();
        OUTPUT.lines().for_each(|line| drop(reader.line(line)));
        let report = reader.report();
        assert_eq!(report.skips, ["b_is_not_possible_here: not root"]);
        assert!(report.is_complete);
        let mut reader = Reader::default();
        OUTPUT.lines().filter(|line| !line.starts_with("test result")).for_each(|line| drop(reader.line(line)));
        assert!(!reader.report().is_complete, "the harness died");
    }

    #[test]
    fn failures_and_reasons_are_shown_and_the_rest_is_not() {
        let (shown, _) = read(OUTPUT);
        let shown = shown.join("\n");
        assert!(shown.contains("skipped b_is_not_possible_here: not root"), "{shown}");
        assert!(shown.contains("assertion failed"), "{shown}");
        assert!(!shown.contains("noise") && !shown.contains("a_works"), "{shown}");
    }

    #[test]
    fn at_the_end_failures_are_printed_again_without_the_output_before_them() {
        let mut reader = Reader::default();
        OUTPUT.lines().for_each(|line| drop(reader.line(line)));
        let wanted = ["c_breaks", "thread 'c_breaks' (7) panicked at src/lib.rs:1:2:", "assertion failed"];
        assert_eq!(reader.failures, [wanted]);
    }

    #[test]
    fn the_results_of_several_runs_add_up() {
        let one = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.5s\n";
        assert_eq!(read(&one.repeat(3)).1, Count { passed: 6, failed: 0, skipped: 0 });
    }
}
