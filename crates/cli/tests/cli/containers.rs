//! Containers as far as they can be told without running one.

use crate::world::World;

#[test]
fn a_container_that_cannot_be_is_refused_before_anything_is_done() {
    let world = World::new();
    let runs: [&[&str]; 10] = [
        &["run"],
        &["run", "--bogus", "app"],
        &["run", "-v", "data:/data", "app"],
        &["run", "-v", "/a:/b:Z", "app"],
        &["run", "--tmpfs", "relative", "app"],
        &["run", "--name", "a/b", "app"],
        &["run", "--network", "bridge", "app"],
        &["run", "--security-opt", "label=disable", "app"],
        &["run", "UPPER"],
        &["exec", "web"],
    ];
    insta::assert_snapshot!(runs.map(|arguments| world.transcript(arguments)).join("\n"));
}

#[test]
fn a_container_that_is_not_there_exits_with_3_and_a_command_in_it_with_125() {
    let world = World::new();
    let runs: [&[&str]; 6] = [
        &["ps", "-a"],
        &["stop", "web"],
        &["kill", "-s", "SIG?", "web"],
        &["rm", "-f", "web", "db"],
        &["logs", "web"],
        &["exec", "web", "ls", "--help"],
    ];
    insta::assert_snapshot!(runs.map(|arguments| world.transcript(arguments)).join("\n"));
    assert!(!world.path("store/containers").exists());
}
