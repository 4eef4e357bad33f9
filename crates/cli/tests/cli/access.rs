//! Access to images: credentials outside the command line, and the resolution of image names.

use std::fs::File;
use std::io::{Seek, Write};
use std::process::{Output, Stdio};

use serde_json::Value;
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{Image, Item, Layer};
use tarpon_testkit::registry::{Auth, PASSWORD, USER};

use crate::world::{World, small_image};

fn world(auth: Auth) -> World {
    let mut contents = Contents::new();
    small_image().add_to(&mut contents, "app", "v1");
    Image::of([Layer::gzip(&[Item::file("other", "x")])]).add_to(&mut contents, "app", "v2");
    World::serving(contents, auth)
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn credentials_come_from_a_file_standard_input_or_a_descriptor() {
    let world = world(Auth::Basic);
    let right = format!("{USER}:{PASSWORD}\n");
    std::fs::write(world.path("creds"), &right).expect("written");
    let output = world.output(&["inspect", "--creds-file", "TMP/creds", "HOST/app:v1"]);
    assert!(output.status.success(), "{}", printed(&output));
    for name in ["-", "/dev/fd/0"] {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(right.as_bytes()).expect("written");
        file.rewind().expect("a file");
        let output = world.command(&["inspect", "--creds-file", name, "HOST/app:v1"]).stdin(Stdio::from(file)).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{name}: {}", printed(&output));
    }
    std::fs::write(world.path("creds"), format!("{USER}:wrong")).expect("written");
    let output = world.output(&["inspect", "--creds-file", "TMP/creds", "HOST/app:v1"]);
    assert_eq!(output.status.code(), Some(4), "{}", printed(&output));
    let convert = ["convert", "--format", "estargz", "--src-creds-file", "TMP/creds", "HOST/app:v1", "oci:TMP/out"];
    assert_eq!(world.output(&convert).status.code(), Some(4));
    std::fs::write(world.path("creds"), &right).expect("written");
    assert!(world.output(&convert).status.success());
}

#[test]
fn unreadable_credentials_fail_before_any_request() {
    let world = world(Auth::Basic);
    File::create(world.path("empty")).expect("made");
    std::fs::write(world.path("two"), "alice:a\nbob:b\n").expect("written");
    for (arguments, why) in [
        (["--creds-file", "TMP/none"], "No such file or directory"),
        (["--creds-file", "TMP/empty"], "expected USER:PASSWORD"),
        (["--creds-file", "TMP/two"], "expected one line"),
        (["--authfile", "TMP/none"], "cannot read the file: No such file or directory"),
    ] {
        let output = world.output(&[&["inspect"], &arguments[..], &["HOST/app:v1"]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(printed(&output).contains(why), "{}", printed(&output));
    }
    let convert = ["convert", "--format", "estargz", "--authfile", "TMP/none", "HOST/app:v1", "oci:TMP/out"];
    assert_eq!(world.output(&convert).status.code(), Some(2));
    assert_eq!(world.server().stats().requests, 0);
}

#[test]
fn inspect_shows_the_image_that_would_be_mounted() {
    let world = world(Auth::Anonymous);
    let inspect = |options: &[&str]| {
        let shown = world.stdout(&[&["inspect", "--json"], options, &["HOST/app:v1"]].concat());
        serde_json::from_str::<Value>(&shown).expect("JSON")
    };
    let before = inspect(&[]);
    assert_eq!(before["in_store"], false);
    world.stdout(&["--quiet", "ls", "HOST/app:v1"]);
    // The tag now refers to another image.
    world.stdout(&["--quiet", "convert", "--format", "estargz", "HOST/app:v2", "HOST/app:v1"]);
    let kept: Value = serde_json::from_str(&world.stdout(&["cache", "ls", "--json"])).expect("JSON");
    for options in [&[][..], &["--pull", "never"]] {
        let shown = inspect(options);
        assert_eq!(shown["manifest_digest"], kept[0]["digest"], "{options:?}");
        assert_eq!((&shown["in_store"], &shown["layers"]), (&true.into(), &before["layers"]));
    }
    for now in ["always", "newer"] {
        assert_ne!(inspect(&["--pull", now])["manifest_digest"], kept[0]["digest"], "{now}");
    }
    assert!(world.stdout(&["cache", "ls"]).contains(" UTC\n"), "times say where they are counted");
}
