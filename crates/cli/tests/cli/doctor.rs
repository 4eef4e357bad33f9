//! `tarpon doctor`: checks of tarpon's environment. The requirements of mounts have tests of their own.

use serde_json::Value;
use tarpon_registry::serve::Contents;
use tarpon_testkit::registry::Auth;

use crate::mounts::MountFixture;
use crate::world::World;

/// The check of this name; `None` if it was not made.
fn check(world: &World, registry: &str, name: &str) -> Option<Value> {
    let output = world.output(&["doctor", "--json", "--registry", registry]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = report["checks"].as_array().expect("checks").clone();
    checks.into_iter().find(|check| check["name"] == name)
}

#[test]
fn a_registry_that_responds_is_distinguished_from_one_that_does_not() {
    const NAME: &str = "registry access";
    for auth in [Auth::Anonymous, Auth::Basic] {
        let world = World::serving(Contents::new(), auth);
        let answers = check(&world, "HOST", NAME).expect("it is asked");
        assert_eq!(answers["works"], true, "an image that it does not have, or does not show, is an answer: {answers}");
    }
    // Nothing listens on port 1 of loopback.
    let world = World::new();
    let silent = check(&world, "127.0.0.1:1", NAME).expect("it is asked");
    assert_eq!(silent["works"], false);
    assert!(silent["found"].as_str().is_some_and(|found| found.contains("127.0.0.1:1")), "{silent}");
    assert!(silent["mend"].is_string(), "{silent}");
    assert_eq!(check(&world, "none", NAME), None);
}

#[test]
fn free_space_and_runtime_are_checked() {
    let world = World::new();
    let room = check(&world, "none", "room for the store").expect("it is looked at");
    assert!(room["found"].as_str().is_some_and(|found| found.contains(" free at ")), "{room}");
    assert!(check(&world, "none", "OCI runtime").is_some());
}

#[test]
fn mounts_get_the_mode_that_is_reported_as_the_default() {
    let Some(fixture) = MountFixture::serving(Auth::Anonymous) else { return };
    let report = fixture.json(&["doctor", "--json", "--registry", "none"]);
    fixture.directory("mnt");
    fixture.stdout(&["--quiet", "mount", "HOST/app:v1", "TMP/mnt"]);
    let status = fixture.json(&["status", "--json"]);
    assert_eq!(report["default"], status[0]["mode"], "{report}");
    fixture.stdout(&["umount", "TMP/mnt"]);
}
