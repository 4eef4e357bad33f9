//! The fetcher with a virtual clock, network and disk: random images, readers, prefetches, faults and evictions, one seed after the
//! other. A seed determines what happens and when. (Which of two things that happen at the same moment comes first may depend on a
//! thread that decodes or hashes.)
//!
//! | invariant | where |
//! |---|---|
//! | no wrong byte; nothing wrong is kept in the store | `chaos.rs`, `kept.rs` |
//! | every read ends within its deadline; once the faults stop, all is readable at once and nothing is left under way | `chaos.rs` |
//! | tasks, pieces, requests and bytes on the wire are bounded; no piece is fetched by two requests at once | `life.rs` |
//! | no wake-up is lost: where nothing fails, no reader of a crowd waits for its deadline | `calm.rs` |
//! | a reader waits for one request of a prefetcher at most | `calm.rs` |
//!
//! `SEEDS=50000 cargo test -p tarpon-fetch --test simulation` runs more of them, `SEED=17` only that one
//! ([`tarpon_testkit::seeds`]).

mod calm;
mod chaos;
mod contents;
mod kept;
mod life;
mod seen;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use seen::Seen;
use tarpon_testkit::seeds::{Random, Seeds};

/// Seeds of an ordinary run.
const ORDINARY: u64 = 1_000;

async fn run(seed: u64, seen: &mut Seen) {
    let (contents, mut random) = (contents::of_seed(seed), Random(seed));
    match random.below(if contents.has_streams() { 2 } else { 4 }) {
        0 | 1 => chaos::run(seed, &contents, &mut random, seen).await,
        2 => calm::demand_is_not_behind_prefetch(seed, &contents, &mut random, seen).await,
        _ => calm::no_wake_up_is_lost(seed, &contents, &mut random, seen).await,
    }
}

#[test]
fn every_read_is_right_and_ends_and_no_reader_waits_for_what_is_not_its_own() {
    let (mut cases, mut seen) = (0, Seen::default());
    for seed in Seeds::from_environment(ORDINARY) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        let outcome = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run(seed, &mut seen))));
        if let Err(panic) = outcome {
            eprintln!("failed with SEED={seed}");
            resume_unwind(panic);
        }
        cases += 1;
    }
    println!("cases: {cases}");
    println!("{seen:?}");
    assert!(cases < ORDINARY || seen.is_complete(), "the cases are not what they were: {seen:?}");
}
