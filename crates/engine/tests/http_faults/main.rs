//! Every fault of HTTP, in every kind of request that a start makes, under a clock that only waits advance: image, index and boot pack
//! come from a scripted registry through the real client into a real store, and all files are read as a mount reads them.
//!
//! A case ends with the right bytes, or with an error of a known kind in bounded time. Nothing wrong is in the store, no secret is
//! at another host or in a message, and when the fault is over everything can be read.
//!
//! A seed determines the contents, and the place of a fault in an answer: see [`tarpon_testkit::seeds`]. `CASE="429 once / Chunk"`
//! runs only cases whose names have this part.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod case;
mod clock;
mod faults;
mod published;
mod requests;
mod secrets;
#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use case::{BUGS, Case, Figures};
use faults::FAULTS;
use published::{FORMATS, Published};
use requests::PHASES;
use tarpon_testkit::matrix;
use tarpon_testkit::seeds::{Random, Seeds};
use tarpon_testkit::watch::{Watch, panic_text};

/// One of so many cases is part of an ordinary run, and of each seed of a run that ends after some time.
const ORDINARY: u64 = 8;

#[test]
fn no_fault_of_any_request_gives_a_wrong_byte_a_long_wait_or_a_lasting_error() {
    assert!(FAULTS.len() >= 40 && PHASES.len() >= 8 && FORMATS.len() >= 2);
    let (mut cases, mut failures, mut most) = (0, Vec::new(), Figures::default());
    let seeds = Seeds::from_environment(1);
    let only = std::env::var("CASE").unwrap_or_default();
    // No divisor of the number of faults: each fault is tested in some phases, and each phase with some faults.
    let every = if seeds.is_complete || matrix::is_full() { 1 } else { ORDINARY };
    assert!(!(FAULTS.len() as u64).is_multiple_of(ORDINARY));
    for seed in seeds {
        for format in &FORMATS {
            let (published, mut number) = (Published::new(format, seed), 0_u64);
            let offset = seed % every;
            for (phase, fault) in PHASES.iter().flat_map(|phase| FAULTS.iter().map(move |fault| (*phase, fault))) {
                let case = Case { published: &published, phase, fault };
                number += 1;
                let is_chosen = number % every == offset || case.was_a_bug();
                if !is_chosen || !case.to_string().contains(&only) {
                    continue;
                }
                cases += 1;
                // Each case has numbers of its own, however many are tested.
                let random = Random(seed ^ (number << 32));
                let _watch = Watch::over(case.to_string());
                match catch_unwind(AssertUnwindSafe(|| case.run(random))) {
                    Ok(Ok(figures)) => most = most.with(&figures),
                    Ok(Err(why)) => failures.push(format!("{case}: {why}")),
                    Err(panic) => failures.push(format!("{case}: {}", panic_text(&*panic))),
                }
            }
        }
    }
    println!("cases: {cases}\nfailures: {}\n{most}", failures.len());
    assert!(failures.is_empty(), "{} of {cases}:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn each_case_that_failed_once_still_exists() {
    for (fault, _, format) in BUGS {
        assert!(FAULTS.iter().any(|row| row.name == fault), "{fault}");
        assert!(FORMATS.iter().any(|known| known.name == format), "{format}");
    }
}

/// Seconds with one digit.
fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
