//! A mounted image is the tree that other tools unpack: the same names, attributes, links and bytes, in each format
//! and each mode; unconverted ones also lazily, through a published index.
//!
//! The expectation is `umoci unpack` of the gzip image, or Podman's store where umoci refuses it. Accepted differences, each with its reason, are listed in
//! [`accepted`]; anything else fails.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use tarpon_tests::dump::{Difference, Dump, Seen, compare, dump};
use tarpon_tests::real::{self, Oracle};
use tarpon_tests::tarpon::Tarpon;

const FORMATS: [&str; 3] = ["gzip", "zstdchunked", "estargz"];
const MODES: [&str; 2] = ["native", "fuse"];

/// What a mount is compared with, and how it was read.
struct Expected {
    oracle: Oracle,
    tree: Dump,
    /// When the oracle unpacked, in seconds since 1970.
    unpacked: i64,
}

/// Why a difference is right. `None`: it is not.
fn accepted(format: &str, expected: &Expected, actual: &Dump, found: &Difference) -> Option<&'static str> {
    let (was, is) = (expected.tree.get(&found.path)?, actual.get(&found.path)?);
    match (found.field, expected.oracle) {
        // The mount counts the names that are there; others count names that a later layer removed.
        ("nlink", _) if is.nlink == names_of(actual, is) => Some("names that were whited out do not count"),
        // eStargz's TOC holds whole seconds (RFC 3339 without a fraction).
        ("mtime", _) if format == "estargz" && was.mtime.1 != 0 && is.mtime.0 == was.mtime.0 => Some("whole seconds"),
        ("mtime", Oracle::Umoci) if was.mtime == (0, 0) && is.mtime.0 < 0 => Some("umoci: no times before 1970"),
        ("xattrs", Oracle::Umoci) if without_empty(&is.xattrs) == was.xattrs => Some("umoci: no empty attributes"),
        // A directory that no layer lists, or that a later layer changed something in.
        ("mtime", Oracle::Podman) if was.kind == 'd' && was.mtime.0 >= expected.unpacked => {
            Some("Podman: the time of unpacking")
        }
        ("mode", Oracle::Podman) if found.path.is_empty() => Some("Podman: 0555 for a root that no layer lists"),
        _ => None,
    }
}

/// Names in the tree that lead to this inode.
fn names_of(tree: &Dump, seen: &Seen) -> u64 {
    match seen.group.is_empty() {
        true => 1,
        false => tree.values().filter(|other| other.group == seen.group).count() as u64,
    }
}

fn without_empty(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    xattrs.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn check(image: &str) {
    if let Some(reason) = real::missing() {
        eprintln!("skipped: {image}: {reason}");
        return;
    }
    let registry = real::registry().expect("missing() looked");
    if !real::has_tag(&registry, image, "gzip") {
        eprintln!("skipped: {image} is not in the registry (cargo xtask images {image})");
        return;
    }
    let unpacked = i64::try_from(UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
    let (oracle, tree) = real::unpacked(&registry, &format!("{image}:gzip")).unwrap();
    let expected = Expected { oracle, tree, unpacked };
    let index = index_of(&format!("{registry}/{image}:gzip"));
    let tags = FORMATS.into_iter().filter(|format| real::has_tag(&registry, image, format));
    // The unconverted image, lazily, through its index; then each format by itself.
    for (format, index) in std::iter::once(("gzip", index.as_str())).chain(tags.map(|format| (format, "none"))) {
        for mode in MODES {
            let mut tarpon = Tarpon::new().unwrap();
            let reference = format!("{registry}/{image}:{format}");
            let options = ["--mode", mode, "--suid", "--dev", "--index", index];
            let root = tarpon.mount(&reference, &options).unwrap();
            if index != "none" {
                let states = tarpon.status().unwrap()[0]["verification"].to_string();
                assert!(states.contains("index-pinned") && !states.contains("diffID"), "{reference}: {states}");
            }
            let actual = dump(&root).unwrap();
            let mut wrong = compare(&expected.tree, &actual);
            wrong.retain(|found| accepted(format, &expected, &actual, found).is_none());
            let shown: Vec<String> = wrong.iter().take(20).map(ToString::to_string).collect();
            assert!(wrong.is_empty(), "{reference} in mode {mode}: {} differences:\n{}", wrong.len(), shown.join("\n"));
            tarpon.unmount(&root).unwrap();
        }
    }
}

/// Publishes the index of an image; its digest.
fn index_of(reference: &str) -> String {
    let made = Tarpon::new().unwrap().run("index", &["--push", "--json", reference]).unwrap();
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    made["index_digest"].as_str().expect("an index has a digest").to_owned()
}

macro_rules! images {
    ($($test:ident: $image:literal),* $(,)?) => {$(
        #[test]
        fn $test() {
            check($image);
        }
    )*};
}

images! {
    debian_base_mounts_as_it_unpacks: "dev/debian-base",
    python_mounts_as_it_unpacks: "dev/python",
    redis_mounts_as_it_unpacks: "dev/redis",
    nginx_mounts_as_it_unpacks: "dev/nginx",
    node_mounts_as_it_unpacks: "dev/node",
    quirks_mounts_as_it_unpacks: "dev/quirks",
    quirks_tar_mounts_as_it_unpacks: "dev/quirks-tar",
    quirks_sparse_mounts_as_it_unpacks: "dev/quirks-sparse",
    quirks_dup_mounts_as_it_unpacks: "dev/quirks-dup",
    manylayers_mounts_as_it_unpacks: "dev/manylayers",
}
