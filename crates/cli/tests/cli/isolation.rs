//! A store whose images are accessible only to users that the registry grants access.

use tarpon_testkit::registry::{Auth, PASSWORD, USER};

use crate::mounts::MountFixture;
use crate::world::World;

#[test]
fn a_store_rejects_the_other_kind_of_isolation() {
    let world = World::new();
    world.stdout(&["--isolation", "tenant", "status"]);
    assert_eq!(world.stdout(&["status"]), "nothing is mounted\nisolation of the store: tenant\n");
    for arguments in [&["--isolation", "shared", "status"][..], &["--isolation", "shared", "cache", "ls"]] {
        let output = world.output(arguments);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && printed.contains("\"tenant\"") && printed.contains("\"shared\""),
            "{printed}"
        );
        assert!(printed.contains("hint: choose another store"), "{printed}");
    }
    let from_environment = world.command(&["status"]).env("TARPON_ISOLATION", "shared").output().expect("it runs");
    assert!(!from_environment.status.success());
    for refused in [&["snapshotter", "--root", "TMP/root"][..], &["ls", "oci:TMP/layout"]] {
        let output = world.output(refused);
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(6) && printed.contains("isolation \"tenant\""), "{printed}");
    }
    assert_eq!(world.output(&["--isolation", "none", "status"]).status.code(), Some(2));
}

#[test]
fn commands_work_as_usual_in_an_isolated_store() {
    let Some(fixture) = MountFixture::serving(Auth::Basic) else { return };
    let place = fixture.directory("mnt").canonicalize().expect("there");
    std::fs::write(fixture.path("creds"), format!("{USER}:{PASSWORD}")).expect("written");
    let mount = ["mount", "--creds-file", "TMP/creds", "HOST/app:v1", "TMP/mnt"];
    fixture.stdout(&[&["--isolation", "tenant", "--quiet"], &mount[..]].concat());
    let hello = || std::fs::read(place.join("etc/hello")).expect("readable");
    let first = hello();
    assert!(fixture.stdout(&["status"]).ends_with("isolation of the store: tenant\n"));
    fixture.directory("other");
    for denied in [
        &["mount", "HOST/app:v1", "TMP/other"][..],
        &["mount", "--creds", "alice:guessed", "HOST/app:v1", "TMP/other"],
        &["ls", "HOST/app:v1"],
        &["pull", "HOST/app:v1"],
        &["inspect", "HOST/app:v1"],
    ] {
        assert_eq!(fixture.output(denied).status.code(), Some(4), "{denied:?}");
    }
    assert_eq!(fixture.output(&["podman", "add", "--creds-file", "TMP/creds", "HOST/app:v1"]).status.code(), Some(6));

    let images = fixture.json(&["cache", "ls", "--json"]);
    assert_eq!(images.as_array().expect("a list").len(), 1);
    let digest = images[0]["digest"].as_str().expect("a digest").to_owned();
    assert_eq!(fixture.json(&["cache", "usage", "--json"])["images"], 1);
    fixture.stdout(&["cache", "verify"]);
    assert_eq!(fixture.json(&["cache", "clear", "--json"])["images"], serde_json::json!([]), "it is mounted");
    assert_eq!(fixture.output(&["cache", "rm", &digest]).status.code(), Some(1));
    fixture.stdout(&["why", "TMP/mnt"]);
    assert_eq!(hello(), first);
    // With another isolation than the store of the mount.
    let unmounted =
        fixture.command(&["umount", "TMP/mnt"]).env("TARPON_ISOLATION", "shared").output().expect("it runs");
    assert!(unmounted.status.success(), "{}", String::from_utf8_lossy(&unmounted.stderr));
    assert_eq!(fixture.json(&["cache", "rm", "--json", &digest])["images"], serde_json::json!([digest]));
    assert_eq!(fixture.json(&["cache", "usage", "--json"])["objects"], 0);
}
