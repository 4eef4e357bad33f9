//! `tarpon.lock`: which one a command uses, and its effect.

use std::process::Output;

use tarpon_registry::serve::Contents;
use tarpon_testkit::registry::Auth;

use crate::world::{World, small_image};

const USED: &str = "is used, as the lock file pins it";

/// A registry with an image and its index, which is pinned in `team.lock`.
fn world() -> World {
    let mut contents = Contents::new();
    small_image().add_to(&mut contents, "app", "v1");
    let world = World::serving(contents, Auth::Anonymous);
    world.stdout(&["index", "--push", "--lock-file", "TMP/team.lock", "HOST/app:v1"]);
    world
}

/// Lists the image with a new store, from the folder `here`.
fn list(world: &World, here: &str, options: &[&str]) -> Output {
    let arguments = [&["ls"], options, &["HOST/app:v1"]].concat();
    let mut command = world.command(&arguments);
    let store = tempfile::tempdir_in(world.path("")).expect("a folder").keep();
    command.env("TARPON_STORE", store).current_dir(world.path(here)).output().expect("it runs")
}

fn uses_it(output: &Output) -> bool {
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    printed.contains(USED)
}

#[test]
fn a_named_lock_file_or_that_of_the_user_is_used() {
    let world = world();
    assert!(!uses_it(&list(&world, "", &[])));
    assert!(uses_it(&list(&world, "", &["--lock-file", "TMP/team.lock"])));
    assert!(
        !uses_it(&list(&world, "", &["--lock-file", "TMP/team.lock", "--index", "none"])),
        "who says none means it"
    );
    std::fs::create_dir_all(world.path(".config/tarpon")).expect("made");
    std::fs::copy(world.path("team.lock"), world.path(".config/tarpon/tarpon.lock")).expect("copied");
    assert!(uses_it(&list(&world, "", &[])));
}

#[test]
fn a_lock_file_in_the_current_directory_is_ignored() {
    let world = world();
    let here = world.directory("checkout");
    for name in ["tarpon.lock", ".config/tarpon/tarpon.lock"] {
        std::fs::create_dir_all(here.join(name).parent().expect("in a folder")).expect("made");
        std::fs::copy(world.path("team.lock"), here.join(name)).expect("copied");
    }
    assert!(!uses_it(&list(&world, "checkout", &[])));
    assert!(uses_it(&list(&world, "checkout", &["--lock-file", "tarpon.lock"])), "unless it is named");
}

#[test]
fn an_unusable_lock_file_fails_early() {
    let world = world();
    std::fs::write(world.path("bad.lock"), "{}").expect("written");
    for (arguments, says) in [
        (&["ls", "--lock-file", "TMP/none.lock", "HOST/app:v1"][..], "none.lock: there is no such file"),
        (&["ls", "--lock-file", "TMP/bad.lock", "HOST/app:v1"][..], "bad.lock: "),
        (&["index", "--push", "--lock-file", "TMP/bad.lock", "HOST/app:v1"][..], "bad.lock: "),
        (&["index", "--push", "--lock-file", "TMP/none/team.lock", "HOST/app:v1"][..], "its folder is not there"),
    ] {
        let before = world.server().stats().requests;
        let output = world.output(arguments);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.starts_with("tarpon: cannot use the lock file ") && printed.contains(says), "{printed}");
        assert_eq!(world.server().stats().requests, before);
    }
}

#[test]
fn the_lock_file_option_is_the_same_for_reading_and_writing() {
    let world = world();
    world.stdout(&["index", "--push", "--lock", "TMP/old.lock", "HOST/app:v1"]);
    let read = |name: &str| std::fs::read_to_string(world.path(name)).expect("written");
    assert_eq!(read("old.lock"), read("team.lock"), "the name that it had before");
    // The lock file that mounts read from the environment is written only if it is named as an option.
    let mut command = world.command(&["index", "--push", "HOST/app:v1"]);
    let output = command.env("TARPON_LOCK", world.path("new.lock")).output().expect("it runs");
    assert!(output.status.success() && !world.path("new.lock").exists());
}

#[test]
fn an_index_that_is_not_saved_gets_a_note() {
    let world = world();
    let printed = |arguments: &[&str]| String::from_utf8_lossy(&world.output(arguments).stderr).into_owned();
    let nowhere = printed(&["index", "HOST/app:v1"]);
    assert!(
        nowhere.starts_with("the index will not be saved: --push publishes the index next to the image"),
        "{nowhere}"
    );
    assert!(nowhere.contains("nothing was kept: --push publishes the index next to the image"), "{nowhere}");
    for kept in [&["index", "--push", "HOST/app:v1"][..], &["index", "--layout", "TMP/layout", "HOST/app:v1"]] {
        let printed = printed(kept);
        assert!(!printed.contains("not be saved") && !printed.contains("nothing was kept"), "{printed}");
    }
    assert!(world.path("layout/index.json").is_file());
    world.stdout(&["index", "--output", "TMP/old", "HOST/app:v1"]);
    assert!(world.path("old/index.json").is_file(), "the name that the option had before");
}
