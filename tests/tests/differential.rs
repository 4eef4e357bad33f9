//! A mounted image is the tree that other tools unpack: the same names, attributes, links and bytes, in each format
//! and each mode.
//!
//! The expectation is in [`tarpon_tests::expected`].

use tarpon_tests::expected::Expected;
use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;

const FORMATS: [&str; 3] = ["gzip", "zstdchunked", "estargz"];
const MODES: [&str; 2] = ["native", "fuse"];

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
    for format in FORMATS.into_iter().filter(|format| real::has_tag(&registry, image, format)) {
        for mode in MODES {
            let mut tarpon = Tarpon::new().unwrap();
            let reference = format!("{registry}/{image}:{format}");
            let root = tarpon.mount(&reference, &["--mode", mode, "--suid", "--dev"]).unwrap();
            expected.assert_at(&root, format == "estargz", &format!("{reference} in mode {mode}"));
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
