//! A malicious publisher: every field of an index artifact, each changed in turn, with all digests above it corrected.
//!
//! Whatever is changed, nothing is kept under a digest that is not its own, an object that contradicts its digest ends as an error, and
//! checking a mounted index and pulling the image detect all of its false claims.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cases;
mod forge;
#[path = "../support/mod.rs"]
mod support;
mod verdict;

use std::fmt::Write;

use futures::stream::{self, StreamExt};
use tarpon_engine::IndexChoice;

use cases::{CASES, Case, Change};
use verdict::{HonestIndex, Outcome};

/// Cases that run at the same time.
const AT_ONCE: usize = 4;

/// Fails for a case whose number, name or verdict differs from the recorded one.
#[tokio::test(flavor = "multi_thread")]
async fn no_change_of_an_index_makes_a_file_something_else() {
    let honest = HonestIndex::new().await;
    let unchanged = honest.verdict(&honest.artifact, IndexChoice::Pinned).await;
    assert!(unchanged.is_true() && matches!(unchanged.outcome, Outcome::Used { .. }), "{unchanged:?}");
    assert!(honest.lazy_objects > 5, "the index has something to say");

    assert!(CASES.len() >= 40);
    let rows = stream::iter((1..).zip(CASES)).map(|(number, case)| row(&honest, number, case));
    let rows: Vec<String> = rows.buffered(AT_ONCE).collect().await;
    insta::assert_snapshot!(rows.concat());
}

/// Number, name and verdict.
async fn row(honest: &HonestIndex, number: usize, case: &Case) -> String {
    let mut artifact = honest.artifact.clone();
    case.change.apply(&mut artifact);
    assert_ne!(artifact.built(), honest.artifact.built(), "{}: nothing is changed", case.name);
    let pinned = honest.verdict(&artifact, IndexChoice::Pinned).await;
    pinned.assert_safe(case.name);
    let mut row = format!("{number:3} {}: {pinned}\n", case.name);
    // An index's claims about layers are the same however it was found.
    if matches!(case.change, Change::Manifest(_) | Change::Artifact(_)) {
        let listed = honest.verdict(&artifact, |_| IndexChoice::Registry).await;
        listed.assert_safe(case.name);
        if !pinned.is_like(&listed) {
            writeln!(row, "    … where the registry lists it: {listed}").unwrap();
        }
    }
    row
}
