//! `tarpon index` and index repositories, with the processes that users have: a worker prepares, and a server reads the boot pack.

use tarpon_oci::Digest;
use tarpon_registry::serve::Contents;
use tarpon_testkit::kernel::can_mount;
use tarpon_testkit::registry::{Auth, PASSWORD, USER};

use crate::world::{World, small_image};

/// A registry with two names of an image. What is pushed to `tarpon/…/app` is for [`USER`] only, whose login is in `auth.json`.
fn world() -> World {
    let mut contents = Contents::new();
    small_image().add_to(&mut contents, "app", "v1");
    small_image().add_to(&mut contents, "app", "v2");
    let world = World::serving(contents, Auth::Anonymous);
    let host = world.server().host();
    let folder = host.replace(':', "_");
    world.server().model().make_private(&format!("tarpon/{folder}/app"), USER, PASSWORD);
    // "alice:s3cret-passw0rd" in base64.
    let auth = format!(r#"{{"auths":{{"{host}/tarpon":{{"auth":"YWxpY2U6czNjcmV0LXBhc3N3MHJk"}}}}}}"#);
    std::fs::write(world.path("auth.json"), auth).expect("written");
    world
}

const LOGIN: [&str; 2] = ["--authfile", "TMP/auth.json"];
const REPO: [&str; 2] = ["--index-repo", "HOST/tarpon"];

/// Standard error of a command with a new store, which must succeed.
fn printed(world: &World, arguments: &[&str]) -> String {
    let store = tempfile::tempdir_in(world.path("")).expect("a folder").keep();
    let output = world.command(arguments).env("TARPON_STORE", store).output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {printed}");
    printed
}

fn place(world: &World) -> String {
    let host = world.server().host();
    format!("{host}/tarpon/{}/app", host.replace(':', "_"))
}

#[test]
fn an_index_is_published_in_the_index_repository_and_used_with_the_login_for_it() {
    let world = world();
    let published = printed(&world, &[&["index", "--push"][..], &LOGIN, &REPO, &["HOST/app:v1"]].concat());
    let place = place(&world);
    assert!(published.contains(&format!("published to {place}\n")), "{published}");
    let used = format!("of {place} is used, because the index repository lists it");
    let listed = printed(&world, &[&["ls"][..], &LOGIN, &REPO, &["HOST/app:v1"]].concat());
    assert!(listed.contains(&used), "{listed}");
    let none = printed(&world, &[&["ls", "--index", "none"][..], &LOGIN, &REPO, &["HOST/app:v1"]].concat());
    assert!(!none.contains("is used"), "{none}");
    // The login is for that repository, and without it there is none.
    let denied = printed(&world, &[&["ls"][..], &REPO, &["HOST/app:v1"]].concat());
    assert!(denied.contains(&format!("no index of {place} is used: ")), "{denied}");
}

#[test]
fn the_environment_names_index_repositories_too() {
    let world = world();
    let place = place(&world);
    let with = |arguments: &[&str]| {
        let store = tempfile::tempdir_in(world.path("")).expect("a folder").keep();
        let mut command = world.command(arguments);
        let repos = format!("oci:{},{}/tarpon", world.path("layout").display(), world.server().host());
        let output = command.env("TARPON_STORE", store).env("TARPON_INDEX_REPO", repos).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    printed(&world, &[&["index", "--push"][..], &LOGIN, &REPO, &["HOST/app:v1"]].concat());
    let used = with(&[&["ls"][..], &LOGIN, &["HOST/app:v1"]].concat());
    assert!(used.contains(&format!("of {place} is used")), "{used}");
    // The first of them gets what is published, and comes first.
    let published = with(&[&["index", "--push"][..], &LOGIN, &["HOST/app:v1"]].concat());
    assert!(published.contains(&format!("published to oci:{}", world.path("layout").display())), "{published}");
    let used = with(&[&["ls"][..], &LOGIN, &["HOST/app:v1"]].concat());
    assert!(used.contains(&format!("of oci:{} is used", world.path("layout").display())), "{used}");
}

#[test]
fn a_boot_pack_is_read_from_the_index_repository_with_the_login_for_it() {
    if !can_mount() {
        return;
    }
    let world = world();
    let (manifest, hello) = (Digest::of(b"manifest"), Digest::of(b"hello\n"));
    let trace = format!(
        "{{\"tarpon-trace\":1,\"image\":\"app\",\"manifest\":\"{manifest}\",\"profile\":\"default\",\"command\":[]}}\n\
         {{\"object\":\"{hello}\",\"size\":6,\"start\":0,\"end\":6,\"micros\":900}}\n"
    );
    std::fs::write(world.path("start.trace"), trace).expect("written");
    let point = world.directory("mnt");
    // The registry has the blobs of all its repositories in each, so the layout comes first.
    for (repo, published) in [("oci:TMP/layout", "oci:".to_owned()), ("HOST/tarpon", place(&world))] {
        let options = [&LOGIN[..], &["--index-repo", repo]].concat();
        let record = &["record", "--push", "--trace", "TMP/start.trace"][..];
        let told = printed(&world, &[record, &options, &["HOST/app:v1"]].concat());
        assert!(told.contains(&format!("published to {published}")), "{told}");

        let mount = &["mount", "--mode", "fuse"][..];
        world.stdout(&[mount, &options, &["HOST/app:v1", "TMP/mnt"]].concat());
        let read = std::fs::read(point.join("etc/hello"));
        let why = world.stdout(&["why", "TMP/mnt"]);
        world.stdout(&["umount", "TMP/mnt"]);
        world.stdout(&["cache", "clear"]);
        assert_eq!(read.expect("read"), b"hello\n");
        assert!(why.contains("boot pack complete") && !why.contains("abandoned"), "{why}");
    }
}

#[test]
fn a_list_of_images_is_indexed_listed_and_removed() {
    let world = world();
    let host = world.server().host();
    std::fs::write(world.path("images.txt"), format!("# ours\n{host}/app:v*\n{host}/app:none\n")).expect("written");
    let sync = [&["index", "sync", "--json"][..], &LOGIN, &REPO, &["TMP/images.txt"]].concat();
    let output = world.output(&sync);
    assert_eq!(output.status.code(), Some(1), "one has failed");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let counts = |report: &serde_json::Value| {
        ["indexed", "known", "unneeded", "failed"].map(|name| report[name].as_u64().expect("a number"))
    };
    assert_eq!(counts(&report), [1, 1, 0, 1], "{report}");
    std::fs::write(world.path("images.txt"), format!("{host}/app:v1\n{host}/app:v2\n")).expect("written");
    let output = world.output(&sync);
    assert!(output.status.success());
    assert_eq!(counts(&serde_json::from_slice(&output.stdout).expect("JSON")), [0, 2, 0, 0]);

    let ls = [&["index", "ls"][..], &LOGIN, &REPO, &["HOST/app:v1"]].concat();
    let listed = world.stdout(&ls);
    assert!(listed.starts_with("INDEX ") && listed.lines().count() == 2 && listed.contains("sha256:"), "{listed}");
    let rm = [&["index", "rm"][..], &LOGIN, &REPO, &["HOST/app:v1"]].concat();
    assert!(world.stdout(&rm).starts_with("sha256:"));
    assert_eq!(world.stdout(&ls), "");
}

/// Learns a start: mounts the image, which has an index, and reads a file of it.
fn learn(world: &World) {
    printed(world, &[&["index", "--push"][..], &LOGIN, &REPO, &["HOST/app:v1"]].concat());
    let point = world.directory("learning");
    let mount = [&["mount", "--mode", "fuse"][..], &LOGIN, &REPO, &["HOST/app:v1", "TMP/learning"]].concat();
    world.stdout(&mount);
    let read = std::fs::read(point.join("etc/hello"));
    world.stdout(&["umount", "TMP/learning"]);
    assert_eq!(read.expect("read"), b"hello\n");
}

#[test]
fn a_learned_start_is_published_once() {
    if !can_mount() {
        return;
    }
    let world = world();
    learn(&world);
    let listed: serde_json::Value = serde_json::from_str(&world.stdout(&["trace", "ls", "--json"])).expect("JSON");
    assert_eq!(listed[0]["starts"], 1, "{listed}");

    let publish = |options: &[&str]| {
        let output = world.output(&[&["trace", "publish", "--json"][..], &LOGIN, &REPO, options].concat());
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), report["images"][0]["state"].as_str().map(str::to_owned), printed)
    };
    let (code, state, printed) = publish(&["--all"]);
    assert_eq!((code, state.as_deref()), (Some(0), Some("too-few")), "{printed}");
    assert!(printed.contains("app:v1: 1 of 3 equal starts\n"), "{printed}");
    let (code, state, printed) = publish(&["--after", "1", "HOST/app:v1"]);
    assert_eq!((code, state.as_deref()), (Some(0), Some("published")), "{printed}");
    assert!(printed.contains(&format!(" in {}\n", place(&world))), "{printed}");
    let (code, state, printed) = publish(&["--after", "1", "--all", "--low-priority"]);
    assert_eq!((code, state.as_deref()), (Some(0), Some("known")), "{printed}");

    // From now on it needs a login.
    world.server().model().make_private("app", USER, PASSWORD);
    let (code, state, printed) = publish(&["--after", "1", "--all"]);
    assert_eq!((code, state.as_deref()), (Some(6), Some("refused")), "{printed}");
    assert!(
        printed.contains("the image needs credentials") && printed.contains("hint: without --index-repo"),
        "{printed}"
    );
    let (code, _, printed) = publish(&["HOST/app:v2"]);
    assert_eq!(code, Some(3), "{printed}");
    let (code, ..) = publish(&[]);
    assert_eq!(code, Some(2), "neither images nor --all");
}

#[test]
fn a_daemon_that_publishes_needs_an_index_repository() {
    let world = World::new();
    let output = world.output(&["daemon", "--learn", "publish", "--listen", "unix://TMP/api.sock"]);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("there is no index repository"), "{printed}");
}

#[test]
fn what_cannot_be_an_index_repository_is_a_usage_error() {
    let world = World::new();
    for repo in ["tarpon", "oci-archive:/a.tar", "registry.example/a:tag"] {
        let output = world.output(&["ls", "--index-repo", repo, "redis"]);
        assert_eq!(output.status.code(), Some(2), "{repo}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let output = world.output(&["index"]);
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}
