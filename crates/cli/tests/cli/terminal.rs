//! On a terminal: one line that is redrawn, and otherwise the same behaviour.

use std::process::Command;

use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, tar};
use tarpon_testkit::registry::{Auth, Fault};

use crate::world::World;

/// Runs the command on a pseudo-terminal of this type and width, with script(1); `None` if that is not installed.
fn on_terminal(world: &World, kind: &str, columns: u16, arguments: &[&str]) -> Option<(i32, String)> {
    let inner = world.command(arguments);
    let words: Vec<String> = std::iter::once(inner.get_program())
        .chain(inner.get_args())
        .map(|word| format!("'{}'", word.to_str().expect("UTF-8")))
        .collect();
    let mut script = Command::new("script");
    script.args([
        "--quiet",
        "--return",
        "--command",
        &format!("stty cols {columns}; {}", words.join(" ")),
        "/dev/null",
    ]);
    script.env("TERM", kind).env("TARPON_STORE", world.path("store")).stdin(std::process::Stdio::null());
    let output = script.output().ok()?;
    Some((output.status.code()?, String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[test]
fn a_layer_that_is_streamed_writes_no_plain_lines() {
    let world = World::new();
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo/image.tar");
    std::fs::copy(archive, world.path("image.tar")).expect("copied");
    let arguments = ["ls", "--platform", "linux/amd64", "oci-archive:TMP/image.tar"];
    let Some((code, shown)) = on_terminal(&world, "xterm", 80, &arguments) else { return };
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("usr\r\n"), "{shown}");
    assert!(!shown.contains("streaming 1 of"), "no plain lines on a terminal: {shown}");
}

#[test]
fn errors_on_a_terminal_are_the_same() {
    let world = World::new();
    let Some((code, shown)) = on_terminal(&world, "xterm", 80, &["status", "TMP"]) else { return };
    assert_eq!(code, 3);
    assert!(shown.contains("not a mount of this store\r\n"), "{shown}");
}

/// Size of the slow layer, and its bytes per second: it takes a few redraws.
const SLOW: usize = 1 << 20;

/// A slow registry.
fn slow() -> World {
    let content: Vec<u8> =
        (0..SLOW / 4).flat_map(|n| u32::try_from(n).unwrap_or(0).wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let tar = tar(&[Item::file("large", content)], Dialect::Pax);
    let image = Image::of([Layer::plain(&tar, tarpon_oci::Compression::None)]);
    let mut contents = Contents::new();
    image.add_to(&mut contents, "app", "v1");
    let world = World::serving(contents, Auth::Anonymous);
    world.server().script([Fault::Pass, Fault::Trickle(SLOW / 3), Fault::Trickle(SLOW / 3), Fault::Trickle(SLOW / 3)]);
    world
}

/// The text without cursor movements and colours.
fn visible(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, part| {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |end| end + 1);
        shown + &part[end..]
    })
}

#[test]
fn the_progress_is_one_line_that_fits_a_narrow_terminal() {
    for columns in [40, 100] {
        let world = slow();
        let Some((code, shown)) = on_terminal(&world, "xterm", columns, &["ls", "HOST/app:v1"]) else { return };
        assert_eq!(code, 0, "{shown}");
        let shown = visible(&shown);
        assert!(shown.contains("of 1.0 MiB"), "{shown:?}");
        assert_eq!(shown.contains("streaming (no table of contents)"), columns == 100, "{shown:?}");
        let drawn = shown.split(['\r', '\n']).map(str::trim_end);
        drawn.for_each(|line| assert!(line.chars().count() < columns.into(), "{columns}: {line:?}"));
    }
}

#[test]
fn a_dumb_terminal_gets_plain_lines() {
    let world = slow();
    let Some((code, shown)) = on_terminal(&world, "dumb", 40, &["ls", "HOST/app:v1"]) else { return };
    assert_eq!(code, 0, "{shown}");
    assert!(!shown.contains('\x1b'), "{shown:?}");
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("streaming 1 of 1 layers, 1.0 MiB (no table of contents)"), "{shown}");
}
