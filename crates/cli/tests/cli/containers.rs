//! Container commands that can be tested without running a container.

use crate::world::World;

#[test]
fn invalid_container_options_are_rejected_early() {
    let world = World::new();
    let runs: [&[&str]; 18] = [
        &["run"],
        &["run", "-h"],
        &["run", "--bogus", "app"],
        &["run", "-p", "8080:http", "app"],
        &["run", "--privileged", "app"],
        &["run", "-v", "data:/data", "app"],
        &["run", "-v", "/a:/b:U", "app"],
        &["run", "--mount", "type=volume,src=data,dst=/data", "app"],
        &["run", "--ulimit", "files=3", "app"],
        &["run", "--add-host", "db:web", "app"],
        &["run", "--pids-limit", "many", "app"],
        &["run", "--security-opt", "seccomp=profile.json", "app"],
        &["run", "--tmpfs", "relative", "app"],
        &["run", "--name", "a/b", "app"],
        &["run", "--network", "macvlan", "app"],
        &["run", "--security-opt", "label=type:spc_t", "app"],
        &["run", "UPPER"],
        &["exec", "web"],
    ];
    insta::assert_snapshot!(runs.map(|arguments| world.transcript(arguments)).join("\n"));
}

#[test]
fn values_that_are_read_late_are_rejected_with_the_code_of_an_invalid_command_line() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: an ordinary user may have no namespaces");
    }
    let world = World::new();
    std::fs::write(world.path("none"), "=b").expect("written");
    let large = std::fs::File::create(world.path("large")).expect("a file");
    large.set_len((1 << 20) + 1).expect("a hole");
    for arguments in [&["--env", "=b"], &["--env-file", "TMP/none"], &["--env-file", "TMP/large"]] {
        let output = world.output(&[&["run"], &arguments[..], &["oci:TMP/app:v1"]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let output = world.output(&["run", "--env-file", "TMP/nowhere", "oci:TMP/app:v1"]);
    assert_eq!(output.status.code(), Some(125), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn unsupported_podman_commands_get_a_hint() {
    let world = World::new();
    let runs: [&[&str]; 11] = [
        &["images"],
        &["rmi", "app"],
        &["top", "web"],
        &["start", "web"],
        &["network", "ls"],
        &["compose", "up"],
        &["rmm", "web"],
        &["ps", "--last", "3"],
        &["ps", "--format", "{{.Names}}"],
        &["ps", "--filter", "label=a"],
        &["logs", "--until", "5m", "web"],
    ];
    insta::assert_snapshot!(runs.map(|arguments| world.transcript(arguments)).join("\n"));
}

#[test]
fn a_quiet_list_has_only_names() {
    let world = World::new();
    for arguments in [&["ps", "-q"][..], &["ps", "-aq"], &["ps", "--quiet", "--all"], &["ps", "--names"]] {
        assert_eq!(world.stdout(arguments), "", "{arguments:?}");
    }
    assert_eq!(world.stdout(&["ps", "--format", "json"]), "[]\n");
}

#[test]
fn a_missing_container_exits_with_3_and_exec_with_125() {
    let world = World::new();
    let runs: [&[&str]; 7] = [
        &["ps", "-a"],
        &["wait", "web"],
        &["stop", "web"],
        &["kill", "-s", "SIG?", "web"],
        &["rm", "-f", "web", "db"],
        &["logs", "web"],
        &["exec", "web", "ls", "--help"],
    ];
    insta::assert_snapshot!(runs.map(|arguments| world.transcript(arguments)).join("\n"));
    assert!(!world.path("store/containers").exists());
}
