//! A converted image equals its source: mounted in each mode it is the tree that other tools unpack from the source, and
//! other tools accept it.

use std::path::Path;
use std::process::Command;

use tarpon_testkit::matrix;
use tarpon_tests::expected::Expected;
use tarpon_tests::real;
use tarpon_tests::tarpon::Tarpon;

const FORMATS: [&str; 2] = ["estargz", "zstd-chunked"];
const MODES: [&str; 2] = ["native", "fuse"];

/// The formats in which a test converts: both in a full run, otherwise one, in turn from test to test.
fn formats(number: usize) -> &'static [&'static str] {
    if matrix::is_full() { &FORMATS } else { std::slice::from_ref(&FORMATS[number % 2]) }
}

/// Why a test on `image` cannot run.
fn missing(image: &str) -> Option<String> {
    if let Some(reason) = real::missing() {
        return Some(reason);
    }
    let registry = real::registry()?;
    let is_there = real::has_tag(&registry, image, "gzip");
    (!is_there).then(|| format!("it is not in the registry (cargo xtask images {image})"))
}

fn check(image: &str, number: usize) {
    if let Some(reason) = missing(image) {
        eprintln!("skipped: {image}: {reason}");
        return;
    }
    let registry = real::registry().expect("missing() looked");
    let source = format!("{registry}/{image}:gzip");
    let expected = Expected::of(&registry, &format!("{image}:gzip")).unwrap();
    let work = real::scratch().unwrap();
    for &format in formats(number) {
        let mut tarpon = Tarpon::new().unwrap();
        let layout = format!("oci:{}:{format}", work.path().join("layout").display());
        let pushed = format!("{registry}/converted/{image}:{format}");
        let first = convert(&tarpon, format, &source, &layout);
        let second = convert(&tarpon, format, &source, &pushed);
        assert_eq!(first, second, "{image} as {format}: the digest depends on where it goes");
        let results = [(&layout, MODES[0]), (&pushed, MODES[1])];
        // Both have one digest, so that one of them is enough where not everything is tested.
        let mounted = if matrix::is_full() { &results[..] } else { std::slice::from_ref(&results[number % 2]) };
        for (result, mode) in mounted {
            let root = tarpon.mount(result, &["--mode", mode, "--suid", "--dev"]).unwrap();
            expected.assert_at(&root, format, &format!("{result} in mode {mode}"));
            tarpon.unmount(&root).unwrap();
        }
        others_take(&layout, &pushed, work.path());
    }
}

/// Converts an image, and returns the digest of the result.
fn convert(tarpon: &Tarpon, format: &str, from: &str, to: &str) -> String {
    let done = tarpon.run("convert", &["--quiet", "--json", "--format", format, from, to]).unwrap();
    let done: serde_json::Value = serde_json::from_str(&done).unwrap();
    done["digest"].as_str().unwrap().to_owned()
}

/// Checks that skopeo can copy the image, which verifies each digest, and that Podman can pull it, which also verifies the diffIDs.
fn others_take(layout: &str, pushed: &str, work: &Path) {
    let copy = format!("oci:{}", work.join("copy").display());
    real::run(Command::new("skopeo").args(["copy", "-q", layout, &copy])).unwrap();
    if !real::have(&["podman"]) {
        eprintln!("skipped: {pushed}: podman is not installed");
        return;
    }
    // Podman needs short paths.
    let store = real::scratch().unwrap();
    let podman = |arguments: &[&str]| {
        let mut command = Command::new("podman");
        command.arg("--root").arg(store.path().join("root")).arg("--runroot").arg(store.path().join("run"));
        real::run(command.args(["--storage-driver", "overlay"]).args(arguments))
    };
    podman(&["pull", "-q", "--tls-verify=false", pushed]).unwrap();
    podman(&["rmi", "-f", pushed]).unwrap();
}

#[test]
fn debian_base_is_converted_as_it_is() {
    check("dev/debian-base", 0);
}

#[test]
fn tars_of_all_dialects_are_converted_as_they_are() {
    check("dev/quirks-tar", 1);
}

#[test]
fn names_that_are_not_utf_8_are_refused_by_name() {
    check_refusal("dev/quirks", 0, "not-utf8");
}

#[test]
fn sparse_files_are_refused_by_name() {
    check_refusal("dev/quirks-sparse", 1, "a sparse file");
}

#[test]
fn names_that_are_a_directory_first_and_a_file_later_are_refused_by_name() {
    check_refusal("dev/quirks-dup", 0, "qt/dup/");
}

/// No format can represent `image`: the conversion fails with one line that contains `words`, and leaves nothing behind.
fn check_refusal(image: &str, number: usize, words: &str) {
    if let Some(reason) = missing(image) {
        eprintln!("skipped: {image}: {reason}");
        return;
    }
    let registry = real::registry().expect("missing() looked");
    let work = real::scratch().unwrap();
    let tarpon = Tarpon::new().unwrap();
    for &format in formats(number) {
        let layout = format!("oci:{}", work.path().join(format).display());
        let source = format!("{registry}/{image}:gzip");
        let output = tarpon.output("convert", &["--quiet", "--format", format, &source, &layout]).unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(6), "{printed}");
        assert!(printed.starts_with("tarpon: cannot convert ") && printed.contains(words), "{printed}");
        assert!(!work.path().join(format).join("index.json").exists());
    }
}
