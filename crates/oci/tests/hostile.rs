//! The verdict on every hostile manifest in `fixtures/hostile/manifest`, as one list.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write as _;
use std::path::Path;

use bytes::Bytes;
use tarpon_oci::{Artifact, Document, Platform, Verified};

/// The error of mounting the document, for a machine of linux/amd64.
fn verdict(bytes: Vec<u8>) -> String {
    let amd64: Platform = "linux/amd64".parse().unwrap();
    match Document::parse(Verified::seal(Bytes::from(bytes)), None) {
        Err(error) => format!("refused: {error}"),
        Ok(Document::Manifest(manifest)) => match manifest.check_image() {
            Err(error) => format!("refused as an image: {error}"),
            Ok(()) => format!("taken, {} layers", manifest.layers.len()),
        },
        Ok(Document::Index(index)) => match index.select(&amd64) {
            Err(error) => format!("refused: {error}"),
            Ok(chosen) => format!("asks for {} bytes", chosen.size),
        },
    }
}

/// The error of reading the document as an artifact.
fn artifact_verdict(bytes: Vec<u8>) -> String {
    match Artifact::parse(Verified::seal(Bytes::from(bytes))) {
        Err(error) => format!("refused: {error}"),
        Ok(artifact) => format!("taken, {} of {} layers", artifact.artifact_type, artifact.layers.len()),
    }
}

/// The name of each hostile manifest and its verdict, a line each.
fn verdicts(verdict: fn(Vec<u8>) -> String) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/hostile/manifest");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 15);
    let mut verdicts = String::new();
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap();
        let verdict = verdict(std::fs::read(&file).unwrap());
        assert!(verdict.len() < 1_000 && !verdict.contains('\n'), "{name}: {verdict}");
        writeln!(verdicts, "{name}: {verdict}").unwrap();
    }
    verdicts
}

#[test]
fn every_hostile_manifest_has_its_verdict() {
    insta::assert_snapshot!(verdicts(verdict));
}

#[test]
fn every_hostile_manifest_has_its_verdict_as_an_artifact() {
    insta::assert_snapshot!(verdicts(artifact_verdict));
}
