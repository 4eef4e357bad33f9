//! Converting images: the output, and that the result lists like the source.

use std::net::TcpListener;
use std::process::Stdio;

use serde_json::Value;
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{Image, Item, Layer};
use tarpon_testkit::registry::{Auth, PASSWORD, USER};

use crate::world::{World, small_image};

/// A world with the demo's image, and a registry with a small one and one that cannot be converted.
fn world() -> World {
    let mut contents = Contents::new();
    small_image().add_to(&mut contents, "app", "v1");
    Image::of([Layer::gzip(&[Item::file(b"odd\xff", "")])]).add_to(&mut contents, "odd", "v1");
    let world = World::serving(contents, Auth::Anonymous);
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo/image.tar");
    std::fs::copy(archive, world.path("image.tar")).expect("copied");
    world
}

const FORMATS: [&str; 2] = ["estargz", "zstd-chunked"];

#[test]
fn a_converted_image_lists_as_its_source_does() {
    let world = world();
    let ls = |image: &str| world.stdout(&["--quiet", "ls", "-lR", "--platform", "linux/amd64", image]);
    for format in FORMATS {
        let to = format!("oci:TMP/layout:{format}");
        let convert =
            ["--quiet", "convert", "--platform", "linux/amd64", "--format", format, "oci-archive:TMP/image.tar"];
        world.stdout(&[&convert[..], &[&to]].concat());
        assert_eq!(ls(&to), ls("oci-archive:TMP/image.tar"), "{format}");
        let inspected = world.stdout(&["inspect", "--json", "--platform", "linux/amd64", &to]);
        let inspected: Value = serde_json::from_str(&inspected).expect("JSON");
        let layers = inspected["layers"].as_array().expect("a list");
        assert!(layers.iter().all(|layer| layer["lazy"] == true), "{inspected}");
    }
}

#[test]
fn a_format_has_the_name_that_inspect_shows_and_the_old_one() {
    let world = world();
    let convert = |format: &str, to: &str| {
        let arguments = ["--quiet", "convert", "--json", "--platform", "linux/amd64", "--format", format];
        let done = world.stdout(&[&arguments[..], &["oci-archive:TMP/image.tar", to]].concat());
        serde_json::from_str::<Value>(&done).expect("JSON")["digest"].clone()
    };
    assert_eq!(convert("zstd:chunked", "oci:TMP/layout:new"), convert("zstd-chunked", "oci:TMP/layout:old"));
    assert!(world.stdout(&["inspect", "--platform", "linux/amd64", "oci:TMP/layout:new"]).contains("zstd:chunked"));
}

#[test]
fn all_platforms_of_an_archive_become_an_index() {
    let world = world();
    let to = "oci:TMP/all:v1";
    let convert = ["convert", "--format", "zstd-chunked", "--all-platforms", "--json", "oci-archive:TMP/image.tar", to];
    let done: Value = serde_json::from_str(&world.stdout(&convert)).expect("JSON");
    assert_eq!(done["is_index"], true);
    assert_eq!(done["images"][0]["platform"], "linux/amd64");
    for platform in ["linux/amd64", "linux/arm64"] {
        let inspected = world.stdout(&["inspect", "--json", "--platform", platform, to]);
        let inspected: Value = serde_json::from_str(&inspected).expect("JSON");
        assert_eq!(inspected["index_digest"], done["digest"]);
    }
}

/// Only new versions of the compressors change these digests and sizes.
#[test]
fn a_conversion_reports_its_result() {
    let world = world();
    let mut all = String::new();
    for format in FORMATS {
        let to = format!("HOST/converted:{format}");
        all.push_str(&world.transcript(&[
            "convert",
            "--platform",
            "linux/amd64",
            "--format",
            format,
            "HOST/app:v1",
            &to,
        ]));
        all.push('\n');
    }
    let convert = ["convert", "--platform", "linux/amd64", "--format", "estargz", "--json"];
    all.push_str(&world.transcript(&[&convert[..], &["HOST/converted:estargz", "oci:TMP/copy:v1"]].concat()));
    insta::assert_snapshot!(all);
}

#[test]
fn an_impossible_conversion_is_a_one_line_error() {
    let world = world();
    let convert = |options: &[&str]| world.transcript(&[&["convert", "--format"], options].concat());
    std::fs::write(world.path("paths"), "etc/hello\n").expect("written");
    let runs: [&[&str]; 12] = [
        &["gzip", "HOST/app:v1", "oci:TMP/out"],
        &["estargz", "HOST/app:v1"],
        &["estargz", "--level", "10", "HOST/app:v1", "oci:TMP/out"],
        &["zstd-chunked", "--level", "0", "HOST/app:v1", "oci:TMP/out"],
        &["zstd-chunked", "--prioritize", "TMP/paths", "HOST/app:v1", "oci:TMP/out"],
        &["estargz", "--prioritize", "TMP/paths", "--keep-diff-id", "HOST/app:v1", "oci:TMP/out"],
        &["estargz", "--jobs", "0", "HOST/app:v1", "oci:TMP/out"],
        &["estargz", "HOST/app:v1", "oci-archive:TMP/out.tar"],
        &["estargz", "HOST/app:v1", &format!("HOST/out@sha256:{}", "0".repeat(64))],
        &["estargz", "HOST/app:v2", "oci:TMP/out"],
        &["estargz", "--platform", "linux/s390x", "HOST/app:v1", "oci:TMP/out"],
        &["estargz", "--platform", "linux/amd64", "HOST/odd:v1", "oci:TMP/out"],
    ];
    insta::assert_snapshot!(runs.map(convert).join("\n"));
    assert!(!world.path("out/index.json").exists());
}

#[test]
fn source_and_destination_have_credentials_of_their_own() {
    let mut contents = Contents::new();
    small_image().add_to(&mut contents, "app", "v1");
    let world = World::serving(contents, Auth::Basic);
    let alice = format!("{USER}:{PASSWORD}");
    let convert = |options: &[&str], to: &str| {
        let common = ["--quiet", "convert", "--format", "estargz", "--platform", "linux/amd64"];
        world.output(&[&common[..], options, &["HOST/app:v1", to]].concat())
    };
    for (options, to, code) in [
        (&[][..], "oci:TMP/out", 4),
        (&["--dest-creds", &alice], "oci:TMP/out", 4),
        (&["--src-creds", &alice], "oci:TMP/out", 0),
        (&["--src-creds", &alice], "HOST/out:v1", 4),
        (&["--src-creds", &alice, "--dest-creds", &alice], "HOST/out:v1", 0),
    ] {
        let output = convert(options, to);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{to}: {printed}");
        assert_eq!(printed.contains("--src-creds, --dest-creds or --authfile"), code == 4, "{printed}");
        assert!(!printed.contains(PASSWORD), "{printed}");
    }
}

#[test]
fn an_interrupted_conversion_leaves_nothing_and_exits_with_130() {
    let world = world();
    // A registry that never answers. When the command connects, its setup is complete.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let source = format!("{}/app:v1", listener.local_addr().expect("it has one"));
    let mut command = world.command(&["--quiet", "convert", "--format", "estargz", &source, "oci:TMP/out:v1"]);
    let child = command.stderr(Stdio::piped()).spawn().expect("it runs");
    let connection = listener.accept().expect("it connects");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    drop(connection);
    assert_eq!(output.status.code(), Some(130));
    let printed = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(printed.starts_with("tarpon: cannot convert ") && printed.ends_with(": interrupted\n"), "{printed}");
    assert!(!world.path("out").exists());
}
