//! `tarpon tier`: usage, removal and verification of a tier in a folder.

mod bucket;

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tarpon_oci::Digest;

use crate::world::World;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A world with the folder of a tier, which is empty.
fn world() -> World {
    let world = World::new();
    world.directory("tier");
    world
}

fn hex(bytes: &[u8]) -> String {
    Digest::of(bytes).hex()
}

/// Writes an object of the layer with this blob, last changed so long ago.
fn put(world: &World, blob: &[u8], name: &str, bytes: &[u8], age: Duration) -> PathBuf {
    let folder = world.path("tier").join("v1/layers").join(hex(blob));
    fs::create_dir_all(&folder).expect("created");
    let path = folder.join(name);
    fs::write(&path, bytes).expect("written");
    File::options().write(true).open(&path).expect("opened").set_modified(SystemTime::now() - age).expect("set");
    path
}

fn index_name(bytes: &[u8]) -> String {
    format!("index-{}", hex(bytes))
}

/// Runs a command on the tier; the exit code, what it prints as JSON, and standard error.
fn run(world: &World, arguments: &[&str]) -> (i32, Value, String) {
    let output = world.output(&[&["tier"], arguments, &["--json", "--tier", "file://TMP/tier"]].concat());
    let stdout = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("it was not killed"), stdout, stderr)
}

/// The JSON of a command that succeeds.
fn json_of(world: &World, arguments: &[&str]) -> Value {
    let (code, value, error) = run(world, arguments);
    assert_eq!((code, &*error), (0, ""), "{arguments:?}");
    value
}

/// Three layers of different ages, one of them without a blob.
fn with_layers() -> World {
    let world = world();
    for (blob, age) in [(b"first", 40 * DAY), (b"other", 3 * DAY)] {
        put(&world, blob, "blob", blob, age);
        put(&world, blob, &index_name(b"an index"), b"an index", age);
        put(&world, blob, "claim-0", b"{}", age);
    }
    put(&world, b"other", "used", b"", DAY / 2);
    put(&world, b"third", &index_name(b"ix"), b"ix", 200 * DAY);
    world
}

#[test]
fn usage_counts_layers_bytes_and_their_last_use() {
    let world = with_layers();
    let tier = format!("file://{}", world.path("tier").display());
    let class = |days: Option<u64>, layers: u64, bytes: u64| json!({"days": days, "layers": layers, "bytes": bytes});
    let expected = json!({
        "tier": tier, "layers": 3, "blobs": 2, "blob_bytes": 10, "indexes": 3, "index_bytes": 18, "total_bytes": 28,
        "last_use": [class(Some(1), 1, 13), class(Some(7), 0, 0), class(Some(30), 0, 0), class(Some(90), 1, 13), class(None, 1, 2)],
    });
    assert_eq!(json_of(&world, &["usage"]), expected);

    let listed = json_of(&world, &["usage", "--layers"])["each_layer"].clone();
    let of = |blob: &[u8]| {
        let layers = listed.as_array().expect("a list");
        layers.iter().find(|layer| layer["digest"] == Digest::of(blob).to_string()).expect("listed").clone()
    };
    assert_eq!((&of(b"other")["blob_bytes"], &of(b"other")["index_bytes"]), (&json!(5), &json!(8)));
    assert_eq!(of(b"third")["blob_bytes"], Value::Null);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let days = (now - of(b"first")["last_used"].as_u64().expect("seconds")) / DAY.as_secs();
    assert_eq!(days, 40);
}

#[test]
fn usage_as_text_is_a_table() {
    let world = with_layers();
    insta::assert_snapshot!(world.stdout(&["tier", "usage", "--tier", "file://TMP/tier"]));
    let listed = world.stdout(&["tier", "usage", "--layers", "--tier", "file://TMP/tier"]);
    let line = listed.lines().find(|line| line.contains(&hex(b"third"))).expect("listed");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[1..4], ["-", "2", "B"], "{line}");
}

#[test]
fn an_empty_folder_is_an_empty_tier() {
    let world = world();
    assert_eq!(json_of(&world, &["usage", "--layers"])["each_layer"], json!([]));
    assert_eq!(json_of(&world, &["gc"])["removed"], json!([]));
    assert_eq!(json_of(&world, &["verify"])["objects"], 0);
}

#[test]
fn gc_removes_what_was_not_used_and_states_how_much() {
    let world = with_layers();
    let unfinished = put(&world, b"other", "blob#1", b"1234567", 50 * DAY);
    let layers = world.path("tier/v1/layers");
    let exists = |blob: &[u8]| layers.join(hex(blob)).exists();

    let tried = json_of(&world, &["gc", "--dry-run"]);
    assert_eq!((&tried["dry_run"], &tried["removed_bytes"]), (&json!(true), &json!(15)));
    assert!(exists(b"first") && exists(b"third") && unfinished.exists());

    let removed = json_of(&world, &["gc", "--unused", "30d"]);
    assert_eq!((&removed["dry_run"], &removed["unused_seconds"]), (&json!(false), &json!(30 * DAY.as_secs())));
    let mut digests: Vec<_> =
        removed["removed"].as_array().expect("a list").iter().map(|layer| layer["digest"].clone()).collect();
    digests.sort_by_key(ToString::to_string);
    let mut expected = [Digest::of(b"first"), Digest::of(b"third")].map(|digest| json!(digest.to_string()));
    expected.sort_by_key(ToString::to_string);
    assert_eq!(digests, expected);
    assert_eq!(
        (&removed["removed_bytes"], &removed["unfinished_copies"], &removed["unfinished_bytes"]),
        (&json!(15), &json!(1), &json!(7))
    );
    assert!(!exists(b"first") && !exists(b"third") && exists(b"other") && !unfinished.exists());
    assert_eq!(json_of(&world, &["usage"])["layers"], 1);
}

#[test]
fn gc_as_text_lists_what_it_removes() {
    let world = with_layers();
    put(&world, b"other", "blob#1", b"1234567", 50 * DAY);
    let gc = |options: &[&str]| world.stdout(&[&["tier", "gc", "--tier", "file://TMP/tier"], options].concat());
    let shown = gc(&["--unused", "100d", "-n"]);
    assert!(shown.contains(&hex(b"third")) && !shown.contains(&hex(b"first")), "{shown}");
    assert!(shown.ends_with("\nwould remove 1 layer, 2 B\n"), "{shown}");
    assert!(gc(&[]).ends_with("\nremoved 2 layers, 15 B\nremoved 1 unfinished copy, 7 B\n"));
    assert_eq!(gc(&[]), "removed 0 layers, 0 B\n");
}

#[test]
fn gc_keeps_what_was_used_within_a_day() {
    let world = world();
    for unused in ["23h", "0d", "10", "-1d", "", "1w", "99999999999999999999d"] {
        let output = world.output(&["tier", "gc", "--unused", unused, "--tier", "file://TMP/tier"]);
        assert_eq!(output.status.code(), Some(2), "{unused}");
    }
    for unused in ["1d", "24h", "36h30m", "213503982334601d"] {
        assert_eq!(json_of(&world, &["gc", "--unused", unused])["removed"], json!([]), "{unused}");
    }
}

/// A tier with a right blob, and a wrong blob and index of another layer that has a claim.
fn with_wrong_objects() -> World {
    let world = world();
    put(&world, b"right", "blob", b"right", DAY);
    put(&world, b"right", &index_name(b"an index"), b"an index", DAY);
    put(&world, b"right", "used", b"", DAY);
    put(&world, b"wrong", "blob", b"wronG", DAY);
    put(&world, b"wrong", &index_name(b"an index"), b"no index", DAY);
    put(&world, b"wrong", "claim-0", b"{}", DAY);
    world
}

#[test]
fn verify_accepts_a_tier_whose_objects_are_right() {
    let world = world();
    for number in 0..20 {
        let blob = vec![number; 100_000];
        put(&world, &blob, "blob", &blob, DAY);
    }
    let checked = json_of(&world, &["verify"]);
    assert_eq!(
        (&checked["objects"], &checked["bytes"], &checked["wrong"]),
        (&json!(20), &json!(2_000_000), &json!([]))
    );
    let text = world.stdout(&["tier", "verify", "--quiet", "--tier", "file://TMP/tier"]);
    assert_eq!(text, "verified 20 objects, 1.9 MiB\n");
}

#[test]
fn verify_names_wrong_objects_and_exits_with_8() {
    let world = with_wrong_objects();
    let (code, checked, error) = run(&world, &["verify"]);
    assert_eq!((code, &checked["objects"], &checked["bytes"]), (8, &json!(4), &json!(26)));
    let wrong = |name: String, removed: bool| json!({"layer": Digest::of(b"wrong").to_string(), "name": name, "removed": removed});
    assert_eq!(checked["wrong"], json!([wrong("blob".into(), false), wrong(index_name(b"an index"), false)]));
    assert!(error.contains("2 objects of the tier file://") && error.contains("--repair"), "{error}");
    assert_eq!(run(&world, &["verify"]).0, 8, "nothing was removed");

    let (code, checked, error) = run(&world, &["verify", "--repair"]);
    assert_eq!((code, &checked["wrong"][1]), (8, &wrong(index_name(b"an index"), true)));
    assert!(error.contains("were removed"), "{error}");
    assert_eq!(json_of(&world, &["verify"])["objects"], 2);
    let layer = world.path("tier/v1/layers").join(hex(b"wrong"));
    assert!(!layer.join("claim-0").exists(), "a host may stream the layer again at once");
    assert!(world.path("tier/v1/layers").join(hex(b"right")).join("blob").exists());
}

#[test]
fn verify_as_text_has_a_line_for_each_wrong_object() {
    let world = with_wrong_objects();
    insta::assert_snapshot!(world.transcript(&["tier", "verify", "--repair", "--tier", "file://TMP/tier"]));
    let output = with_wrong_objects();
    let output = output.output(&["tier", "verify", "--tier", "file://TMP/tier"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (wrong, index) = (Digest::of(b"wrong"), index_name(b"an index"));
    assert_eq!(
        text,
        format!("verified 4 objects, 26 B\nwrong blob of layer {wrong}\nwrong {index} of layer {wrong}\n")
    );
}

#[test]
fn the_tier_of_the_environment_is_used_and_credentials_have_no_option() {
    let world = with_layers();
    let mut command = world.command(&["tier", "usage", "--json"]);
    let output =
        command.env("TARPON_TIER", format!("file://{}", world.path("tier").display())).output().expect("it runs");
    let usage: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(usage["layers"], 3);
    let refused = world.transcript(&["tier", "usage", "--tier", "s3://user:hidden@bucket"]);
    assert!(refused.contains("exit 2") && refused.contains("environment"), "{refused}");
}

#[test]
fn a_tier_that_cannot_be_used_is_one_clear_error() {
    let world = World::new();
    let transcripts = [
        world.transcript(&["tier", "usage"]),
        world.transcript(&["tier", "gc", "--tier", "file://TMP/missing"]),
        world.transcript(&["tier", "verify", "--tier", "http://bucket"]),
    ];
    insta::assert_snapshot!(transcripts.join("\n"));
}
