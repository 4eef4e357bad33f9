//! The seeds of the fuzz targets of names, manifests and headers, as a plain test.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use tarpon_testkit::fuzz;

fn replay(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz").join(name);
    let mut seeds = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let seed = std::fs::read(entry.unwrap().path()).unwrap();
        target(&seed);
        // Every prefix too: cheap, and where parsers stumble.
        (0..seed.len().min(300)).for_each(|end| target(&seed[..end]));
        seeds += 1;
    }
    assert!(seeds >= 10, "{name}: {seeds} seeds");
}

#[test]
fn seeds_of_names_manifests_and_headers_keep_their_invariants() {
    replay("digest_reference", fuzz::digest_reference);
    replay("manifest_index", fuzz::manifest_index);
    replay("index_lock", fuzz::index_lock);
    replay("www_authenticate", fuzz::www_authenticate);
    replay("content_range", fuzz::content_range);
}
