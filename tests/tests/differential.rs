//! A mounted image is the tree that other tools unpack: the same names, attributes, links and bytes, in each format
//! and each mode.
//!
//! The expectation is `umoci unpack` of the gzip image. Accepted differences, each with its reason, are listed in
//! [`accepted`]; anything else fails.

use tarpon_tests::dump::{Difference, Dump, compare, dump};
use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;

const FORMATS: [&str; 3] = ["gzip", "zstdchunked", "estargz"];
const MODES: [&str; 2] = ["native", "fuse"];

/// Why a difference is right. `None`: it is not.
fn accepted(format: &str, expected: &Dump, found: &Difference) -> Option<&'static str> {
    let was = expected.get(&found.path)?;
    match found.field {
        // umoci counts names that a later layer removed; the mount counts the names that are there.
        "nlink" => Some("umoci: link counts of files whose other names were whited out"),
        // eStargz's TOC holds whole seconds (RFC 3339 without a fraction).
        "mtime" if format == "estargz" && was.mtime.1 != 0 => Some("eStargz: whole seconds"),
        // umoci stores times before 1970 as 1970.
        "mtime" if was.mtime == (0, 0) => Some("umoci: no times before 1970"),
        _ => None,
    }
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
    let expected = real::umoci_dump(&registry, &format!("{image}:gzip")).unwrap();
    for format in FORMATS.into_iter().filter(|format| real::has_tag(&registry, image, format)) {
        for mode in MODES {
            let mut tarpon = Tarpon::new().unwrap();
            let reference = format!("{registry}/{image}:{format}");
            let root = tarpon.mount(&reference, &["--mode", mode, "--suid", "--dev"]).unwrap();
            let actual = dump(&root).unwrap();
            let mut wrong = compare(&expected, &actual);
            wrong.retain(|found| accepted(format, &expected, found).is_none());
            let shown: Vec<String> = wrong.iter().take(20).map(ToString::to_string).collect();
            assert!(wrong.is_empty(), "{reference} in mode {mode}: {} differences:\n{}", wrong.len(), shown.join("\n"));
            tarpon.unmount(&root).unwrap();
        }
    }
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
