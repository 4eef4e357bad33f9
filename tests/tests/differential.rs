//! A mounted image equals the tree that other tools unpack: the same names, attributes, links and bytes, in each format
//! and each mode; unconverted images also lazily, through a published index.
//!
//! The expectation is `umoci unpack` of the gzip image, or Podman's store where umoci refuses it. Accepted differences, each with its reason, are listed in
//! `tarpon_tests::expected`; anything else fails.

use tarpon_testkit::matrix;
use tarpon_tests::expected::Expected;
use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;

const FORMATS: [&str; 3] = ["gzip", "zstdchunked", "estargz"];
const MODES: [&str; 2] = ["native", "fuse"];

/// Images of ordinary files, of which a part of the combinations has half of the formats each: the hand-written images have all.
const IN_HALF_THE_FORMATS: [&str; 2] = ["dev/debian-base", "dev/redis"];

/// Whether an image is tested in a format: always in a full run.
fn is_tested(image: &str, number: usize) -> bool {
    let position = IN_HALF_THE_FORMATS.iter().position(|name| *name == image);
    matrix::is_full() || position.is_none_or(|position| position % 2 == number % 2)
}

/// The modes in which a format is tested: both in a full run, otherwise they take turns over the formats.
fn modes(number: usize) -> &'static [&'static str] {
    if matrix::is_full() { &MODES } else { std::slice::from_ref(&MODES[number % 2]) }
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
    let expected = Expected::of(&registry, &format!("{image}:gzip")).unwrap();
    let index = if is_tested(image, 1) { index_of(&format!("{registry}/{image}:gzip")) } else { String::new() };
    let tags = FORMATS.into_iter().filter(|format| real::has_tag(&registry, image, format));
    // The unconverted image, lazily, through its index; then each format by itself.
    let formats = std::iter::once(("gzip", index.as_str())).chain(tags.map(|format| (format, "none")));
    // By its index in mode fuse, then unpacked in mode native.
    for (number, (format, index)) in (1..).zip(formats).filter(|(number, _)| is_tested(image, *number)) {
        for mode in modes(number) {
            let mut tarpon = Tarpon::new().unwrap();
            let reference = format!("{registry}/{image}:{format}");
            let options = ["--mode", mode, "--suid", "--dev", "--index", index];
            let root = tarpon.mount(&reference, &options).unwrap();
            if index != "none" {
                let states = tarpon.status().unwrap()[0]["verification"].to_string();
                assert!(states.contains("index-pinned") && !states.contains("diffID"), "{reference}: {states}");
            }
            expected.assert_at(&root, format, &format!("{reference} in mode {mode}"));
            tarpon.unmount(&root).unwrap();
        }
    }
}

/// Publishes the index of an image; returns its digest.
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
