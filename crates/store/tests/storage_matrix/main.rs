//! Every operation that changes a store, in every state of an image, disturbed at every call of the disk: by a stop of
//! the process or of the machine, by an error, by slowness. The calls are those that an undisturbed run makes.
//!
//! After a disturbance nothing incomplete or wrong is visible to a process that opens the store, the operation can be
//! repeated, and the result is that of an undisturbed run. Nothing is left that a collection does not remove.
//!
//! A seed determines the contents, and which cases are part of an ordinary run: see [`tarpon_testkit::seeds`].
//! `CASE="publish a small object / Half / Kill"` runs only cases whose names have this part.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod bench;
#[path = "../common/mod.rs"]
mod common;
mod crashes;
mod errors;
mod operations;
mod picture;
mod states;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bench::Bench;
use operations::operations;
use states::{STATES, State};
use tarpon_testkit::seeds::Seeds;
use tarpon_testkit::storage::FaultyDisk;
use tarpon_testkit::watch::{Watch, panic_text};

/// One of so many cases is part of an ordinary run, and of each seed of a run that ends after some time.
const CRASHES: u64 = 43;
/// The same for errors, of which there are more.
const ERRORS: u64 = 181;

/// The same for slow disks. Odd, so that both times are tested.
const SLOWNESS: u64 = 5;

/// Cases and their results.
#[derive(Default)]
struct Run {
    seed: u64,
    only: String,
    every: u64,
    number: u64,
    cases: u64,
    failures: Vec<String>,
}

impl Run {
    fn new(seed: u64, every: u64) -> Self {
        let only = std::env::var("CASE").unwrap_or_default();
        Self { seed, every: if only.is_empty() { every } else { 1 }, only, ..Self::default() }
    }

    /// Runs a case if it is part of this run.
    fn case(&mut self, name: &dyn Display, run: impl FnOnce() -> Result<(), String>) {
        self.number += 1;
        let is_chosen = self.number % self.every == self.seed % self.every;
        if !is_chosen || !name.to_string().contains(&self.only) {
            return;
        }
        self.cases += 1;
        let name = format!("{name}, SEED={}", self.seed);
        let _watch = Watch::over(name.clone());
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => self.failures.push(format!("{name}: {why}")),
            Err(panic) => self.failures.push(format!("{name}: {}", panic_text(&*panic))),
        }
    }

    fn bench<'a>(&mut self, operation: &'a operations::Operation, state: State) -> Option<Bench<'a>> {
        match catch_unwind(AssertUnwindSafe(|| Bench::new(operation, state, self.seed))) {
            Ok(Ok(bench)) => return Some(bench),
            Ok(Err(why)) => self.failures.push(format!("{} / {state:?}: {why}", operation.name)),
            Err(panic) => self.failures.push(format!("{} / {state:?}: {}", operation.name, panic_text(&*panic))),
        }
        None
    }
}

/// The results of all cases of all seeds.
#[derive(Default)]
struct Total {
    cases: u64,
    /// Cases there are, in this run or not.
    known: u64,
    failures: Vec<String>,
}

impl Display for Total {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cases: {}\nfailures: {}\nof {} cases", self.cases, self.failures.len(), self.known)
    }
}

impl Total {
    fn check(&self) {
        let again = "again: SEED=… CASE=\"…\" cargo test -p tarpon-store --test storage_matrix";
        let count = self.failures.len();
        assert!(count == 0, "{count} of {}; {again}\n{}", self.cases, self.failures.join("\n"));
    }
}

/// Runs all cases of all seeds that the environment names; `each` those of one operation in one state.
fn run_all(every: u64, mut each: impl FnMut(&mut Run, &Bench<'_>)) -> Total {
    let operations = operations();
    let seeds = Seeds::from_environment(1);
    // All of them take 20 minutes: a run of all combinations of cases has no more of these.
    let every = if seeds.is_complete { 1 } else { every };
    let mut total = Total::default();
    for seed in seeds {
        let mut run = Run::new(seed, every);
        let states = || STATES.into_iter().chain([State::NoStore]);
        let all = operations.iter().flat_map(|operation| states().map(move |state| (operation, state)));
        for (operation, state) in all.filter(|(operation, state)| operation.is_in(*state)) {
            // `CASE` names one operation, or a part that any of them has.
            let is_other = operations.iter().any(|other| run.only.starts_with(&format!("{} /", other.name)))
                && !run.only.starts_with(&format!("{} /", operation.name));
            if is_other {
                continue;
            }
            if let Some(bench) = run.bench(operation, state) {
                each(&mut run, &bench);
            }
        }
        total.cases += run.cases;
        total.known += run.number;
        total.failures.append(&mut run.failures);
    }
    total
}

#[test]
fn a_stop_at_any_call_leaves_nothing_wrong_nothing_in_the_way_and_nothing_for_ever() {
    let (mut points, mut kinds) = (0, BTreeSet::new());
    let total = run_all(CRASHES, |run, bench| {
        let (folder, disk) = (bench.prepared(), Arc::new(FaultyDisk::healthy()));
        let start = bench.run(&disk, folder.path());
        let calls = changes(&disk, &folder.path().display().to_string());
        for at in start.changes + 1..=disk.changes() + 1 {
            let call = calls.get(usize::try_from(at - 1).unwrap()).map(String::as_str);
            points += u64::from(call.is_some());
            kinds.extend(call.map(|call| call.split(' ').next().unwrap_or_default().to_owned()));
            for stop in crashes::stops(run.seed) {
                let case = crashes::Case { bench, stop, at, call };
                if case.applies() {
                    run.case(&case, || case.run());
                }
            }
        }
    });
    println!("{total}\n{points} calls ({kinds:?}), each with a stop before and after it: {} points", 2 * points);
    total.check();
    if std::env::var_os("CASE").is_none() {
        assert!(2 * points >= 480 && kinds.len() >= 8, "{points} calls: {kinds:?}");
    }
}

#[test]
fn any_error_of_any_call_ends_in_success_or_a_typed_error_and_its_effects_end_with_it() {
    let total = run_all(ERRORS, |run, bench| {
        let (folder, disk) = (bench.prepared(), Arc::new(FaultyDisk::healthy()));
        let start = bench.run(&disk, folder.path());
        let log = relative(disk.log(), &folder.path().display().to_string());
        for at in errors::calls(&log, start.operations) {
            let call = &log[usize::try_from(at - 1).unwrap()];
            for fault in errors::FAULTS.into_iter().filter(|fault| errors::applies(*fault, call)) {
                let case = errors::Case { bench, fault, at, call };
                run.case(&case, || case.run());
            }
        }
    });
    println!("{total}");
    total.check();
}

#[test]
fn a_disk_of_any_slowness_changes_no_result() {
    let total = run_all(SLOWNESS, |run, bench| {
        // The first is longer than the short waits for locks, the second than all of them.
        for time in [Duration::from_secs(2), Duration::from_secs(90)] {
            let name = format!("{} / {:?} / {time:?} per call", bench.operation.name, bench.state);
            run.case(&name, || errors::run_slowly(bench, time));
        }
    });
    println!("{total}");
    total.check();
}

/// The calls that change something, by their numbers from 1.
fn changes(disk: &FaultyDisk, folder: &str) -> Vec<String> {
    let is_change = |call: &String| !call.starts_with("read") && !call.starts_with("look");
    relative(disk.log(), folder).into_iter().filter(is_change).collect()
}

/// Calls with paths relative to the store.
fn relative(log: Vec<String>, folder: &str) -> Vec<String> {
    log.into_iter().map(|call| call.replace(folder, "")).collect()
}
