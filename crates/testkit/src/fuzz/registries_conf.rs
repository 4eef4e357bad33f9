//! Invariant: a configuration of registries that parses leads each name to at most as many hosts as it has mirrors and one more, each a
//! valid name, and completes each short name to names that begin with a registry.

use tarpon_oci::{Reference, is_short_name};
use tarpon_registry::Registries;

/// Names of each kind; the registries are those of the seeds.
const NAMES: [&str; 6] = [
    "a.example/app:1",
    "a.example/team/app",
    "x.a.example/app:1",
    "localhost:5000/app:1",
    "library/redis:7",
    "a.example/app@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
];

/// Parses `data` as a file, and looks names up in it.
pub fn registries_conf(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(registries) = Registries::parse(text) else { return };
    let mirrors = text.matches("mirror").count();
    for name in NAMES {
        let reference: Reference = name.parse().expect("a reference");
        if let Ok(endpoints) = registries.endpoints(&reference) {
            assert!((1..=mirrors + 1).contains(&endpoints.len()), "{} hosts", endpoints.len());
            for endpoint in endpoints {
                let found = endpoint.reference.to_string();
                assert_eq!(found.parse().as_ref(), Ok(&endpoint.reference));
                assert_eq!(endpoint.reference.digest(), reference.digest());
            }
        }
        for full in registries.full_names(name).unwrap_or_default() {
            assert!(full == name || !is_short_name(&full), "{name} became {full}");
        }
    }
}
