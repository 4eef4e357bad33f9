//! Invariant: any bytes are a consistent image record (each of its files once, the manifest named by its own digest,
//! layers within the limit) or an error, and a record is read back unchanged.

use tarpon_oci::{Digest, limits};
use tarpon_store::{Part, parse_record};

/// Parses `data` as a sealed record, and as the text inside of the seal.
pub fn record_json(data: &[u8]) {
    check(data);
    check(&sealed(data));
}

fn sealed(value: &[u8]) -> Vec<u8> {
    let mut text = format!(r#"{{"digest":"{}","value":"#, Digest::of(value)).into_bytes();
    text.extend_from_slice(value);
    text.push(b'}');
    text
}

fn check(text: &[u8]) {
    let Ok(record) = parse_record(text) else { return };
    assert!(record.layers.len() <= limits::LAYERS);
    assert_eq!(record.part(Part::Manifest).map(|part| part.digest), Some(record.manifest));
    let parts = [Part::Manifest, Part::Config, Part::Tree, Part::Chunks, Part::Objects];
    assert!(parts.iter().all(|&part| record.part(part).is_some()));
    let others = record.parts.iter().filter(|other| !parts.contains(&other.part)).count();
    assert!(others <= 1 && record.parts.len() == parts.len() + others, "a boot pack at most");
    let written = serde_json::to_vec(&record).expect("a record is plain data");
    assert_eq!(parse_record(&sealed(&written)).ok(), Some(record));
}
