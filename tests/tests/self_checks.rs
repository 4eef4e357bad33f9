//! The hand-written images hold a program that compares their tree with a model. It finds no difference in either mode,
//! even where other tools unpack the image differently.

use std::path::Path;
use std::process::Command;

use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;

/// Runs a program of the image with the image as its root, and with a private `/dev`, because it writes to `/dev/shm`.
/// That mount disappears with its namespace.
fn run_inside(root: &Path, line: &str) -> String {
    let script = "mount -t tmpfs tmpfs \"$1/dev\" && mkdir \"$1/dev/shm\" && exec chroot \"$1\" /bin/sh -c \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(root).arg(line);
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    real::run(&mut command).unwrap_or_else(|error| panic!("{line}: {error}"))
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
    for mode in ["native", "fuse"] {
        let mut tarpon = Tarpon::new().unwrap();
        let root = tarpon.mount(&format!("{registry}/{image}:gzip"), &["--mode", mode, "--suid", "--dev"]).unwrap();
        let printed = run_inside(&root, "tar-check");
        assert!(printed.contains("READY"), "{image} in mode {mode}: {printed}");
        tarpon.unmount(&root).unwrap();
    }
}

#[test]
fn handwritten_tars_are_as_their_model() {
    check("dev/quirks-tar");
}

#[test]
fn sparse_files_are_as_their_model() {
    check("dev/quirks-sparse");
}

#[test]
fn old_gnu_sparse_files_are_as_their_model() {
    check("dev/quirks-gnusparse");
}

#[test]
fn of_entries_with_one_name_the_last_wins() {
    check("dev/quirks-dup");
}
