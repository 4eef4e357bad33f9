//! Runs the test programs, several at once, and sums up their output.
//!
//! Many tests wait: for the disk, for a registry, for a container, for a deadline. So more programs run at once than there
//! are processors. The output of a program is shown in one piece.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tarpon_harness::paths;

use super::cargo;
use super::claims::{self, Claim};
use super::count::Count;
use super::output::{Reader, Report};
use super::schedule;

/// Which tests to run.
pub(super) enum Which<'a> {
    AllButEndToEnd,
    /// All tests, with the registry that has the images of the end-to-end tests.
    All {
        registry: Option<&'a str>,
        /// Whether the tests go through all combinations of their cases.
        is_full: bool,
    },
}

/// Makes the tests go through all combinations: read by `tarpon_testkit::matrix`.
const FULL: &str = "TARPON_TEST_ALL";

/// Time limit for one program: several times what the slowest takes on two busy processors. A test that hangs is
/// detected, and the other results are not lost.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// One of this many programs is expected to wait at any time: with two programs, two processors were idle for a third of the time.
const WAITING: usize = 2;

/// How often a program is polled for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Number of programs that the summary names as the slowest, as candidates for optimisation.
const SLOWEST: usize = 10;

/// Lines of standard error that are shown for a failed program.
const ERROR_LINES: usize = 200;

/// A program to run.
struct Job {
    name: String,
    command: Command,
    /// Path of its output files, without the extension.
    log: PathBuf,
}

/// The outcome of a program.
struct Outcome {
    name: String,
    took: Duration,
    report: Report,
}

/// The outcomes of all programs.
#[derive(Default)]
struct Sum {
    outcomes: Vec<Outcome>,
}

/// Runs all test programs and the examples of the documentation.
pub(super) fn run(root: &Path, which: &Which<'_>, programs: Vec<cargo::Program>) -> Result<Count> {
    let logs = paths::target().join("test-logs");
    // Logs of programs that no longer exist would be mistaken for results.
    let _absent = fs::remove_dir_all(&logs);
    fs::create_dir_all(&logs)?;
    let with_end_to_end = matches!(which, Which::All { .. });
    let mut tasks: Vec<(Claim, Job)> = programs.into_iter().map(|program| task(which, &logs, program)).collect();
    // The end-to-end tests take longest, and those that run one at a time longest of all: the short ones fill the gaps at the end.
    tasks.sort_by_key(|(claim, job)| (!job.name.starts_with("tests/"), *claim != Claim::Podman));
    let documentation = cargo::documentation(root, with_end_to_end)?;
    tasks.push((Claim::Nothing, job(which, &logs, "documentation", documentation)));
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let slots = processors + processors.div_ceil(WAITING);
    let sum = Mutex::new(Sum::default());
    schedule::run_all(tasks, slots, |job| {
        let outcome = finish(job);
        sum.lock().unwrap_or_else(PoisonError::into_inner).outcomes.push(outcome);
    });
    println!("(all that the tests printed: {})", logs.display());
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    // With a registry everything that packages and images provide is available.
    Ok(sum.show(matches!(which, Which::All { registry: Some(_), .. })))
}

fn task(which: &Which<'_>, logs: &Path, program: cargo::Program) -> (Claim, Job) {
    let mut command = Command::new(&program.executable);
    command.arg("--show-output").current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    (claims::claim(&program.name), job(which, logs, &program.name, command))
}

fn job(which: &Which<'_>, logs: &Path, name: &str, mut command: Command) -> Job {
    // A different snapshot must be a failure, not a new file in the work tree.
    command.env("INSTA_UPDATE", "no").stdin(Stdio::null());
    if let Which::All { registry: Some(registry), .. } = which {
        command.env("REGISTRY", registry);
    }
    if let Which::All { is_full: true, .. } = which {
        command.env(FULL, "1");
    }
    Job { name: name.to_owned(), command, log: logs.join(name.replace('/', "-")) }
}

/// Runs a program to its end and prints the relevant lines. It counts as failed if its result cannot be determined.
fn finish(job: Job) -> Outcome {
    let (name, began) = (job.name.clone(), Instant::now());
    let (mut report, mut shown) = attempt(job).unwrap_or_else(|error| {
        let report = Report { count: Count::failed(), ..Report::default() };
        (report, vec![format!("{error:#}")])
    });
    let took = began.elapsed();
    if report.count.failed > 0 && report.failures.is_empty() {
        report.failures.push(vec![name.clone(), shown.last().cloned().unwrap_or_default()]);
    }
    shown.insert(0, format!("   {name}: {}, {:.1} s", report.count, took.as_secs_f64()));
    println!("{}", shown.join("\n"));
    Outcome { name, took, report }
}

/// A summary of a program's output, and the lines to print.
fn attempt(mut job: Job) -> Result<(Report, Vec<String>)> {
    let (out, err) = (job.log.with_extension("out"), job.log.with_extension("err"));
    let open = |path: &Path| File::create(path).with_context(|| format!("cannot write {}", path.display()));
    let child = job.command.stdout(open(&out)?).stderr(open(&err)?).spawn();
    let status = wait(child.with_context(|| format!("cannot start {}", job.name))?)?;
    let (mut reader, mut shown) = (Reader::default(), Vec::new());
    for line in lines(&out)? {
        shown.extend(reader.line(&line));
    }
    let mut report = reader.report();
    let is_well = status.is_some_and(|status| status.success());
    if report.count.failed == 0 && !(is_well && report.is_complete) {
        report.count += Count::failed();
        shown.push(match status {
            Some(status) => format!("{} ended with {status} and no result", job.name),
            None => format!("{} was killed: it took more than {} s", job.name, LIMIT.as_secs()),
        });
    }
    if report.count.failed > 0 {
        let errors = lines(&err)?;
        let hidden = errors.len().saturating_sub(ERROR_LINES);
        let beginning = (hidden > 0).then(|| format!("({hidden} lines more: {})", err.display()));
        let position = shown.len().saturating_sub(1);
        let _inserted = shown.splice(position..position, beginning.into_iter().chain(errors.into_iter().skip(hidden)));
    }
    Ok((report, shown))
}

/// Waits for the end of a program; `None` if it had to be killed.
fn wait(mut child: Child) -> Result<Option<ExitStatus>> {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn lines(file: &Path) -> Result<Vec<String>> {
    let open = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let lines = BufReader::new(open).split(b'\n');
    Ok(lines.map(|line| Ok(String::from_utf8_lossy(&line?).into_owned())).collect::<std::io::Result<_>>()?)
}

impl Sum {
    /// Prints skips and failures, and counts. `is_complete`: the machine has all packages and images.
    fn show(mut self, is_complete: bool) -> Count {
        self.outcomes.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
        let slowest = self.outcomes.iter().take(SLOWEST);
        let slowest = slowest.map(|outcome| format!("{} {:.0} s", outcome.name, outcome.took.as_secs_f64()));
        println!("slowest: {}", slowest.collect::<Vec<_>>().join(", "));
        let mut count = Count::default();
        for outcome in &self.outcomes {
            count += outcome.report.count;
            for skip in &outcome.report.skips {
                println!("skipped: {}: {skip}", outcome.name);
                if is_complete && !claims::may_skip(skip) {
                    println!("failed: {skip}: no reason to skip it here (see xtask/src/test/claims.rs)");
                    count += Count::failed();
                    count.skipped -= 1;
                }
            }
        }
        for failure in self.outcomes.iter().flat_map(|outcome| &outcome.report.failures) {
            println!("failed: {}", failure.join("\n    "));
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_script(script: &str) -> (Outcome, PathBuf) {
        let folder = tempfile::tempdir().unwrap().keep();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let outcome = finish(Job { name: "a/b".into(), command, log: folder.join("a-b") });
        (outcome, folder)
    }

    fn summed(script: &str, is_complete: bool) -> Count {
        let (outcome, folder) = run_script(script);
        fs::remove_dir_all(folder).unwrap();
        Sum { outcomes: vec![outcome] }.show(is_complete)
    }

    const RESULT: &str = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out'";

    #[test]
    fn a_program_that_dies_without_a_result_or_with_an_error_after_it_has_failed() {
        let count = |passed, failed| Count { passed, failed, skipped: 0 };
        assert_eq!(summed(RESULT, true), count(2, 0));
        assert_eq!(summed("echo running 2 tests; kill -ABRT $$", true), count(0, 1));
        assert_eq!(summed("echo running 2 tests", true), count(0, 1));
        assert_eq!(summed(&format!("{RESULT}; exit 3"), true), count(2, 1));
    }

    #[test]
    fn a_skip_that_nothing_explains_is_a_failure_on_a_complete_machine_alone() {
        let script = |reason: &str| {
            format!("printf 'successes:\\n---- one stdout ----\\nskipped: {reason}\\nsuccesses:\\n'; {RESULT}")
        };
        let explained = Count { passed: 1, failed: 0, skipped: 1 };
        assert_eq!(summed(&script("no /dev/fuse"), true), explained);
        assert_eq!(summed(&script("skopeo is not installed"), false), explained);
        let failed = Count { passed: 1, failed: 1, skipped: 0 };
        assert_eq!(summed(&script("skopeo is not installed"), true), failed);
    }

    #[test]
    fn the_output_of_a_program_stays_in_its_log() {
        let (_, folder) = run_script(&format!("echo noise; echo warning >&2; {RESULT}"));
        assert!(fs::read_to_string(folder.join("a-b.out")).unwrap().starts_with("noise\n"));
        assert_eq!(fs::read_to_string(folder.join("a-b.err")).unwrap(), "warning\n");
        fs::remove_dir_all(folder).unwrap();
    }
}
