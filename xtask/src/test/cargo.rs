//! Runs `cargo test` and reads what it prints.
//!
//! A test that cannot run on this machine prints a line that starts with `skipped:` and returns, for want of a third
//! outcome in the test harness. So the output of tests that passed is asked for, searched for that line, and not shown.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::count::Count;
use crate::paths;

/// Which tests to run.
pub(crate) enum Which<'a> {
    AllButEndToEnd,
    /// The end-to-end tests find their images in the registry.
    All {
        registry: Option<&'a str>,
    },
}

/// Runs the tests of the workspace, shows what is of interest and counts.
pub(crate) fn test(root: &Path, which: Which<'_>) -> Result<Count> {
    let log = paths::target().join("test.log");
    fs::create_dir_all(paths::target())?;
    let mut copy = File::create(&log)?;
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--no-fail-fast"]);
    // A snapshot that differs is a failure, and not a new file in the work tree.
    command.env("INSTA_UPDATE", "no");
    match which {
        Which::AllButEndToEnd => command.args(["--exclude", "tarpon-tests"]),
        Which::All { registry } => command.envs(registry.map(|r| ("REGISTRY", r))),
    };
    let mut child = command
        .args(["--", "--show-output"])
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let mut reader = Reader::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            writeln!(copy, "{line}")?;
            if let Some(shown) = reader.line(&line) {
                println!("{shown}");
            }
        }
    }
    let status = child.wait()?;
    println!("(all that the tests printed: {})", log.display());
    for failure in &reader.failures {
        println!("failed: {}", failure.join("\n    "));
    }
    let mut count = reader.count();
    if !status.success() && count.failed == 0 {
        println!("cargo test ended with {status}");
        count += Count::failed();
    }
    Ok(count)
}

/// Lines of a failure that are said once more at the end, where those look who see the end alone.
const FAILURE_LINES: usize = 12;
/// Characters of such a line: it may be a whole log.
const FAILURE_LINE_CHARACTERS: usize = 400;

/// Reads the output of the test harness, line by line.
#[derive(Default)]
struct Reader {
    place: Place,
    count: Count,
    /// The name of each test that failed, and what it said last before it did.
    failures: Vec<Vec<String>>,
    /// Of the tests since the last result.
    skipped_themselves: usize,
}

/// Which part of the output a line belongs to.
#[derive(Default, PartialEq, Eq)]
enum Place {
    /// Names and outcomes.
    #[default]
    Shown,
    /// The output of tests that failed.
    Failed { is_telling: bool },
    /// The output of a test that passed, which may have skipped itself.
    Passed { test: String, skipped: bool },
}

impl Reader {
    /// Takes a line in and gives what is to be shown for it.
    fn line(&mut self, line: &str) -> Option<String> {
        if line.starts_with("test result: ") {
            self.place = Place::Shown;
            self.result(line);
            let nothing = line.contains(" 0 passed; 0 failed; 0 ignored;");
            return (!nothing).then(|| line.to_owned());
        }
        match (line, &mut self.place) {
            ("successes:", _) => {
                self.place = Place::Passed { test: String::new(), skipped: false };
                None
            }
            ("failures:", _) => {
                self.place = Place::Failed { is_telling: false };
                Some(line.to_owned())
            }
            (_, Place::Shown) => is_news(line).then(|| line.to_owned()),
            (_, Place::Failed { .. }) => {
                self.failure(line);
                is_news(line).then(|| line.to_owned())
            }
            (_, Place::Passed { test, skipped }) => {
                if let Some(name) = heading(line) {
                    self.place = Place::Passed { test: name.to_owned(), skipped: false };
                    return None;
                }
                let reason = line.strip_prefix("skipped:")?;
                if !std::mem::replace(skipped, true) {
                    self.skipped_themselves += 1;
                    return Some(format!("skipped {test}:{reason}"));
                }
                None
            }
        }
    }

    /// Keeps what a failed test says of its failure: what follows the panic, without the backtrace.
    fn failure(&mut self, line: &str) {
        let Place::Failed { is_telling } = &mut self.place else { return };
        if let Some(name) = heading(line) {
            *is_telling = false;
            self.failures.push(vec![name.to_owned()]);
        }
        let Some(lines) = self.failures.last_mut() else { return };
        *is_telling |= line.contains(" panicked at ");
        *is_telling &= line != "stack backtrace:" && !line.starts_with("note: ") && lines.len() <= FAILURE_LINES;
        if *is_telling && !line.is_empty() {
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
        self.count += Count {
            passed: number(" passed").saturating_sub(skipped),
            failed: number(" failed"),
            skipped: number(" ignored") + skipped,
        };
    }

    fn count(self) -> Count {
        self.count
    }
}

/// The test whose output follows.
fn heading(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// The harness says a line for each test that passed; those are left out.
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
        (shown, reader.count())
    }

    #[test]
    fn a_test_that_skipped_itself_counts_as_skipped_once() {
        let (_, count) = read(OUTPUT);
        assert_eq!(count, Count { passed: 1, failed: 1, skipped: 2 });
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
    fn at_the_end_failures_are_said_once_more_without_what_led_to_them() {
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
