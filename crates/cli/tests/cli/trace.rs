//! `tarpon trace`: files as input, text and pictures as output.

use std::fmt::Write;

use tarpon_oci::Digest;

use crate::world::World;

/// A trace with these lines: name, size, range, time, and the rest of the line.
fn trace(profile: &str, touches: &[(&str, u64, [u64; 2], u64, &str)]) -> String {
    let manifest = Digest::of(b"manifest");
    let mut text = format!(
        r#"{{"tarpon-trace":1,"image":"docker.io/library/python:3.12","manifest":"{manifest}","profile":"{profile}","command":["python","-c","import numpy"],"ready_micros":412345}}"#
    );
    for (name, size, [start, end], micros, rest) in touches {
        let object = Digest::of(name.as_bytes());
        write!(
            text,
            "\n{{\"object\":\"{object}\",\"size\":{size},\"start\":{start},\"end\":{end},\"micros\":{micros}{rest}}}"
        )
        .expect("a String takes it");
    }
    text + "\n"
}

fn world() -> World {
    let world = World::new();
    let start = trace(
        "import",
        &[
            (
                "python",
                6_700_000,
                [0, 65_536],
                900,
                r#","path":"/usr/local/bin/python3.12","from":"demand","stall":38000"#,
            ),
            ("os", 39_000, [0, 39_000], 41_000, r#","path":"/usr/local/lib/python3.12/os.py","from":"local""#),
            ("python", 6_700_000, [65_536, 131_072], 52_000, r#","from":"prefetch""#),
            ("odd", 10, [0, 10], 60_000, r#","path":"/odd\u001b[2J\nname""#),
            ("unnamed", 4096, [0, 1024], 61_250, r#","stall":1250"#),
        ],
    );
    std::fs::write(world.path("start.trace"), start).expect("written");
    let other = trace("serve", &[("os", 39_000, [0, 39_000], 100, ""), ("late", 7, [0, 7], 200_000, "")]);
    std::fs::write(world.path("other.trace"), other).expect("written");
    world
}

#[test]
fn a_trace_is_shown_file_by_file() {
    insta::assert_snapshot!(world().stdout(&["trace", "show", "TMP/start.trace"]));
}

#[test]
fn the_json_of_a_trace_has_a_stable_shape() {
    insta::assert_snapshot!(world().stdout(&["trace", "show", "--json", "TMP/start.trace"]));
}

#[test]
fn merged_traces_are_a_trace_whichever_comes_first() {
    let world = world();
    let merged = world.stdout(&["trace", "merge", "TMP/start.trace", "TMP/other.trace"]);
    let turned = world.stdout(&["trace", "merge", "TMP/other.trace", "TMP/start.trace"]);
    assert_eq!(merged.split_once('\n').expect("lines").1, turned.split_once('\n').expect("lines").1);

    let run = world.transcript(&["trace", "merge", "TMP/start.trace", "TMP/other.trace", "-o", "TMP/both.trace"]);
    assert!(run.ends_with("wrote TMP/both.trace\nexit 0\n"), "{run}");
    assert_eq!(std::fs::read_to_string(world.path("both.trace")).expect("written"), merged);
    insta::assert_snapshot!(world.stdout(&["trace", "show", "TMP/both.trace"]));
}

#[test]
fn a_plot_goes_to_a_file_or_to_standard_output() {
    let world = world();
    let svg = world.stdout(&["trace", "plot", "TMP/start.trace"]);
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(world.stdout(&["-q", "trace", "plot", "TMP/start.trace", "-o", "TMP/start.svg"]), "");
    assert_eq!(std::fs::read_to_string(world.path("start.svg")).expect("written"), svg);
}

#[test]
fn an_invalid_trace_is_a_one_line_error() {
    let world = world();
    std::fs::write(world.path("picture.png"), b"\x89PNG\r\n\x1a\n").expect("written");
    let later = trace("x", &[]).replace("\"tarpon-trace\":1", "\"tarpon-trace\":2");
    std::fs::write(world.path("later.trace"), later).expect("written");
    std::fs::write(world.path("sizes.trace"), trace("x", &[("os", 7, [0, 7], 0, "")])).expect("written");
    let broken =
        std::fs::read_to_string(world.path("start.trace")).expect("there").replace("\"end\":65536", "\"end\":0");
    std::fs::write(world.path("broken.trace"), broken).expect("written");
    let runs: [&[&str]; 7] = [
        &["trace", "show", "TMP/absent.trace"],
        &["trace", "show", "TMP/picture.png"],
        &["trace", "plot", "TMP/later.trace"],
        &["trace", "show", "TMP/broken.trace"],
        &["trace", "merge", "TMP/start.trace", "TMP/sizes.trace"],
        &["trace", "merge"],
        &["trace", "plot", "TMP/start.trace", "-o", "TMP/absent/start.svg"],
    ];
    let all: Vec<String> = runs.iter().map(|run| world.transcript(run)).collect();
    insta::assert_snapshot!(all.join("\n"));
}
