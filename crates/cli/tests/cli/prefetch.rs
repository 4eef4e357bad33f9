//! `tarpon prefetch`: lists, results, exit codes.

use std::io::Write as _;
use std::process::Stdio;

use serde_json::Value;
use tarpon_oci::Compression;
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{Dialect, EstargzOptions, Image, Item, Layer, estargz, tar};
use tarpon_testkit::registry::Auth;

use crate::world::World;

/// `app:marked` has a table of contents and files that its author marked, `app:plain` has neither.
fn world() -> World {
    let words: Vec<u8> = (0..40_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let items = [Item::file("tool", "tool"), Item::file(".prefetch.landmark", b"\x0f"), Item::file("words", words)];
    let mut contents = Contents::new();
    Image::of([estargz(&items, EstargzOptions::default())]).add_to(&mut contents, "app", "marked");
    let plain = Layer::plain(&tar(&items, Dialect::Pax), Compression::Gzip);
    Image::of([plain]).add_to(&mut contents, "app", "plain");
    World::serving(contents, Auth::Anonymous)
}

fn reports(text: &[u8]) -> Vec<Value> {
    serde_json::from_slice(text).expect("an array")
}

#[test]
fn an_image_of_a_list_that_fails_does_not_stop_the_others() {
    let world = world();
    let list = format!("# tomorrow\n{0}/app:none\n{0}/app:marked # twice\n\n{0}/app:marked\n", world.server().host());
    for jobs in ["1", "3"] {
        let mut command = world.command(&["prefetch", "--json", "--jobs", jobs, "--file", "-", "HOST/app:plain"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        child.stdin.take().expect("a pipe").write_all(list.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        let printed = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(3), "{printed}");
        assert!(printed.contains("app:none") && printed.contains("tarpon: cannot prefetch 1 of 3 images"), "{printed}");
        let reports = reports(&output.stdout);
        let states: Vec<_> = reports.iter().map(|report| report["state"].as_str().expect("a state")).collect();
        assert_eq!(states, ["prefetched", "failed", "prefetched"]);
        assert!(reports[1]["error"].as_str().expect("a reason").contains("app:none"), "{reports:?}");
        assert_eq!((&reports[0]["content"], &reports[2]["content"]), (&"unknown".into(), &"landmarks".into()));
    }
    world.stdout(&["cache", "verify"]);
}

#[test]
fn the_line_of_an_image_shows_what_was_fetched_or_that_nothing_was() {
    let world = world();
    let line = |arguments: &[&str]| {
        let output = world.output(&[&["prefetch"], arguments].concat());
        let printed = String::from_utf8(output.stderr).expect("text");
        (output.status.code(), printed.lines().last().unwrap_or_default().to_owned())
    };
    let (code, printed) = line(&["HOST/app:marked"]);
    assert!(code == Some(0) && printed.contains("that its author marked: fetched "), "{printed}");
    let (code, printed) = line(&["HOST/app:marked"]);
    assert!(code == Some(0) && printed.ends_with("that its author marked: already in the store"), "{printed}");
    let (code, printed) = line(&["--pack-only", "HOST/app:plain"]);
    assert_eq!(code, Some(6), "{printed}");
    let (code, printed) = line(&["HOST/app:plain"]);
    assert!(
        code == Some(0) && printed.contains("prepared, no boot pack; --all brings the whole image: fetched"),
        "{printed}"
    );
    let (code, printed) = line(&["--all", "HOST/app:marked"]);
    assert!(code == Some(0) && printed.contains("the whole image: fetched "), "{printed}");
    let (code, printed) = line(&["--all", "HOST/app:marked"]);
    assert!(code == Some(0) && printed.ends_with("the whole image: already in the store"), "{printed}");
    let all = world.output(&["--quiet", "prefetch", "--all", "HOST/app:marked", "HOST/app:plain"]);
    assert!(all.status.success() && all.stderr.is_empty());
}

#[test]
fn a_command_line_without_images_is_refused_and_a_line_that_is_no_image_fails_alone() {
    let world = world();
    assert_eq!(world.output(&["prefetch"]).status.code(), Some(2));
    let list = world.path("images.txt");
    std::fs::write(&list, format!("no image\n{}/app:marked\n", world.server().host())).expect("a file");
    let output = world.output(&["prefetch", "--json", "--file", list.to_str().expect("UTF-8")]);
    let printed = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.code() == Some(2) && printed.contains("cannot prefetch no image"), "{printed}");
    assert_eq!(reports(&output.stdout)[1]["state"], "prefetched", "the other one");
    assert_eq!(world.output(&["prefetch", "--file", "/none"]).status.code(), Some(1));
    assert_eq!(world.output(&["prefetch", "--rate", "7", "HOST/app:plain"]).status.code(), Some(2));
    assert_eq!(world.output(&["prefetch", "--all", "--pack-only", "HOST/app:plain"]).status.code(), Some(2));
}
