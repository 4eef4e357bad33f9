//! The complete help of every subcommand: it is part of the interface.

use crate::world::World;

fn help(arguments: &[&str]) -> String {
    World::new().stdout(arguments)
}

#[test]
fn help_of_the_command() {
    insta::assert_snapshot!(help(&["--help"]));
}

#[test]
fn short_help_of_the_command() {
    insta::assert_snapshot!(help(&["-h"]));
}

#[test]
fn help_of_every_subcommand() {
    let subcommands = [
        "mount",
        "umount",
        "run",
        "ps",
        "exec",
        "logs",
        "wait",
        "stop",
        "kill",
        "rm",
        "commit",
        "push",
        "pull",
        "ls",
        "index",
        "record",
        "inspect",
        "convert",
        "index",
        "podman",
        "snapshotter",
        "status",
        "why",
        "tier",
        "trace",
        "cache",
        "recover",
        "server",
        "doctor",
        "demo",
        "completions",
        "man",
    ];
    for subcommand in subcommands {
        insta::assert_snapshot!(format!("help_of_{subcommand}"), help(&[subcommand, "--help"]));
    }
}

#[test]
fn help_of_every_cache_subcommand() {
    for subcommand in ["ls", "usage", "gc", "verify", "rm", "clear"] {
        insta::assert_snapshot!(format!("help_of_cache_{subcommand}"), help(&["cache", subcommand, "--help"]));
    }
}

#[test]
fn help_of_every_index_subcommand() {
    for subcommand in ["sync", "ls", "rm"] {
        insta::assert_snapshot!(format!("help_of_index_{subcommand}"), help(&["index", subcommand, "--help"]));
    }
}

#[test]
fn help_of_every_podman_subcommand() {
    for subcommand in ["add", "rm", "ls", "setup", "layers"] {
        insta::assert_snapshot!(format!("help_of_podman_{subcommand}"), help(&["podman", subcommand, "--help"]));
    }
    for subcommand in ["start", "stop", "ls"] {
        let name = format!("help_of_podman_layers_{subcommand}");
        insta::assert_snapshot!(name, help(&["podman", "layers", subcommand, "--help"]));
    }
}

#[test]
fn help_of_every_trace_subcommand() {
    for subcommand in ["show", "merge", "plot"] {
        insta::assert_snapshot!(format!("help_of_trace_{subcommand}"), help(&["trace", subcommand, "--help"]));
    }
}

#[test]
fn help_of_every_tier_subcommand() {
    for subcommand in ["usage", "gc", "verify"] {
        insta::assert_snapshot!(format!("help_of_tier_{subcommand}"), help(&["tier", subcommand, "--help"]));
    }
}

#[test]
fn help_of_every_server_subcommand() {
    insta::assert_snapshot!("help_of_server_upgrade", help(&["server", "upgrade", "--help"]));
}

#[test]
fn the_version_is_one_line() {
    assert_eq!(help(&["--version"]), concat!("tarpon ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn completions_exist_for_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = help(&["completions", shell]);
        assert!(script.contains("umount"), "{shell}");
        let script = script.replace("__server", "");
        let hidden = ["Serve the mounts", "__serve", "Supervise a container"];
        assert!(!hidden.iter().any(|word| script.contains(word)), "{shell} completes a hidden subcommand");
    }
}

#[test]
fn there_is_a_manual_page_for_every_subcommand() {
    let world = World::new();
    let pages = world.stdout(&["man", "TMP/man"]);
    for page in [
        "tarpon",
        "tarpon-mount",
        "tarpon-record",
        "tarpon-run",
        "tarpon-convert",
        "tarpon-cache-verify",
        "tarpon-demo",
    ] {
        assert!(pages.contains(&format!("TMP/man/{page}.1\n")), "{page} is missing in\n{pages}");
    }
    let mount = std::fs::read_to_string(world.path("man/tarpon-mount.1")).expect("written");
    assert!(!pages.contains("tarpon-serve.1") && !pages.contains("tarpon-keep.1"), "a page for a hidden subcommand");
    assert!(mount.contains("EXAMPLES") || mount.contains("Examples"), "{mount}");
}
