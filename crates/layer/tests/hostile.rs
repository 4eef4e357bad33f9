//! The catalogue of bad layers: every case has a verdict, and the verdicts are a snapshot.

mod common;

use std::fmt::Write;

use common::{RANDOM, import_tar, index_by_toc, listing};
use tarpon_layer::LayerIndex;
use tarpon_layer::toc::{NotLazy, TocError};
use tarpon_testkit::layers::{Item, Layer, RawHeader, Tar, hostile_tars, hostile_tocs};

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

#[test]
fn a_layer_whose_hard_link_leads_below_a_symlink_is_streamed() {
    let (symlink, link) = (Item::symlink("lib", "usr/lib"), Item::hard_link("b", "lib/a"));
    let second = Item::hard_link("c", "b");
    for items in [vec![symlink.clone(), link.clone()], vec![link.clone(), symlink.clone()], vec![second, link, symlink]]
    {
        let refused = index_by_toc(&Layer::estargz(&items)).err();
        assert!(
            matches!(&refused, Some(TocError::NotLazy(NotLazy::BelowSymlink(name))) if name == "/b"),
            "{refused:?}"
        );
    }
    // The target is in a layer below.
    assert!(index_by_toc(&Layer::estargz(&[Item::hard_link("b", "lib/a")])).is_ok());
}

/// Names of a GNU header with these bytes in place of its times of access and change, and behind them.
fn name_with_times(bytes: &[u8]) -> String {
    let tar = Tar::new().sized(RawHeader::new("name").gnu().field(345, bytes), b"").finish();
    let (index, _) = import_tar(&tar, RANDOM).expect("a sound layer");
    index.entries[0].path.to_string()
}

#[test]
fn a_gnu_header_with_a_prefix_in_place_of_its_times_is_read_as_go_reads_it() {
    let mut long = b"folder/".repeat(22);
    long.truncate(153);
    let long_name = format!("{}/name", String::from_utf8_lossy(&long));
    for (bytes, name) in [
        (&b"folder/of/another"[..], "folder/of/another/name"),
        (b"12345670000/folder", "12345670000/folder/name"),
        (b"12345670000 123x", "12345670000 123x/name"),
        (b"1234567 001 12345670000 ", "1234567 001 12345670000 /name"),
        (&long, &long_name),
        (b"", "name"),
        (b"12345670000\x001234567000x", "12345670000/name"),
        (b"\0folder", "name"),
        (b" 1234567000 12345670000 ", "name"),
        (b"            \x80\0\0\0\0\0\0\0\0\0\0\x01", "name"),
        ("f\u{f6}lder".as_bytes(), "name"),
    ] {
        assert_eq!(name_with_times(bytes), format!("/{name}"), "{}", bytes.escape_ascii());
    }
}
