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
    let mut waiting: Vec<Vec<String>> = subcommands(&[]);
    while let Some(path) = waiting.pop() {
        let arguments: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        insta::assert_snapshot!(format!("help_of_{}", path.join("_")), help(&arguments));
        waiting.extend(subcommands(&path));
    }
}

/// The paths of the subcommands that the help of a command lists.
fn subcommands(path: &[String]) -> Vec<Vec<String>> {
    let arguments: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let help = help(&arguments);
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Other lines continue a description.
    let names = list.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.map(|name| path.iter().cloned().chain([name.to_owned()]).collect()).collect()
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
