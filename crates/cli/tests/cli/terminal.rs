//! On a terminal: bars instead of lines, and no difference in what is done.

use std::process::Command;

use crate::world::World;

/// Runs the command on a pseudo-terminal, with the help of script(1); `None` where that is not installed.
fn on_terminal(world: &World, arguments: &[&str]) -> Option<(i32, String)> {
    let inner = world.command(arguments);
    let words: Vec<String> = std::iter::once(inner.get_program())
        .chain(inner.get_args())
        .map(|word| format!("'{}'", word.to_str().expect("UTF-8")))
        .collect();
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &words.join(" "), "/dev/null"]);
    script.env("TARPON_STORE", world.path("store")).stdin(std::process::Stdio::null());
    let output = script.output().ok()?;
    Some((output.status.code()?, String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[test]
fn a_layer_that_is_streamed_shows_a_bar() {
    let world = World::new();
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo/image.tar");
    std::fs::copy(archive, world.path("image.tar")).expect("copied");
    let arguments = ["ls", "--platform", "linux/amd64", "oci-archive:TMP/image.tar"];
    let Some((code, shown)) = on_terminal(&world, &arguments) else { return };
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("usr\r\n"), "{shown}");
    assert!(!shown.contains("streaming 1 of"), "no plain lines on a terminal: {shown}");
}

#[test]
fn errors_on_a_terminal_are_the_same() {
    let world = World::new();
    let Some((code, shown)) = on_terminal(&world, &["status", "TMP"]) else { return };
    assert_eq!(code, 3);
    assert!(shown.contains("this store has no mount there\r\n"), "{shown}");
}
