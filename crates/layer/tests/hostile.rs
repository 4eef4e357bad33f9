//! The catalogue of bad layers: every case has a verdict, and the verdicts are a snapshot.

mod common;

use std::fmt::Write;

use common::{RANDOM, import_tar, index_by_toc, listing};
use tarpon_layer::LayerIndex;
use tarpon_testkit::layers::{hostile_tars, hostile_tocs};

fn verdict<E: std::fmt::Display>(result: &Result<LayerIndex, E>) -> String {
    match result {
        Ok(index) if index.entries.is_empty() => "taken, empty".to_owned(),
        Ok(index) => format!("taken\n    {}", listing(index).trim_end().replace('\n', "\n    ")),
        Err(error) => format!("refused: {error}"),
    }
}

#[test]
fn every_hostile_tar_has_its_verdict() {
    let mut verdicts = String::new();
    for (name, tar) in hostile_tars() {
        let result = import_tar(&tar, RANDOM).map(|(index, _)| index);
        writeln!(verdicts, "{name}: {}", verdict(&result)).unwrap();
    }
    insta::assert_snapshot!(verdicts);
}

#[test]
fn every_hostile_toc_has_its_verdict() {
    let mut verdicts = String::new();
    for (name, layer) in hostile_tocs() {
        writeln!(verdicts, "{name}: {}", verdict(&index_by_toc(&layer))).unwrap();
    }
    insta::assert_snapshot!(verdicts);
}
