use std::time::Duration;

use tarpon_trace::{Origin, Touch, Trace, plot};

use crate::{header, read, touch, trace};

const K: u64 = 1024;

/// A start of a Python program: its loader, libraries, modules.
fn small() -> Trace {
    let mut touches = vec![
        read("/usr/local/bin/python3.12", "base", 6_700 * K, 0..64 * K, 900, Origin::Demand, 38_000),
        read("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "base", 220 * K, 0..220 * K, 39_500, Origin::Local, 0),
        read("/usr/lib/x86_64-linux-gnu/libc.so.6", "base", 1_900 * K, 0..512 * K, 41_000, Origin::Demand, 61_000),
        read("/usr/lib/x86_64-linux-gnu/libm.so.6", "base", 900 * K, 0..128 * K, 104_000, Origin::Prefetch, 0),
        read("/usr/local/bin/python3.12", "base", 6_700 * K, 64 * K..2_400 * K, 106_000, Origin::Demand, 22_000),
        read(
            "/usr/local/lib/python3.12/encodings/__init__.py",
            "python",
            6 * K,
            0..6 * K,
            131_000,
            Origin::Prefetch,
            900,
        ),
        read("/usr/local/lib/python3.12/site.py", "python", 23 * K, 0..23 * K, 139_000, Origin::Prefetch, 0),
        read("/usr/local/lib/python3.12/os.py", "python", 39 * K, 0..39 * K, 150_000, Origin::Local, 0),
    ];
    for module in 0..12 {
        let path = format!("/usr/local/lib/python3.12/site-packages/numpy/core/_module_{module:02}.cpython-312.so");
        let (size, at) = ((200 + module * 150) * K, 160_000 + module * 16_000);
        let from = [Origin::Prefetch, Origin::Demand, Origin::Prefetch][usize::try_from(module % 3).expect("small")];
        let stall = if from == Origin::Demand { 14_000 + module * 1500 } else { 0 };
        touches.push(read(&path, "numpy", size, 0..size / 2, at, from, stall));
    }
    touches.push(Touch { at: Duration::from_micros(380_000), ..touch("unnamed", 50_000, 0..50_000, 0) });
    trace(touches)
}

/// A start that touches hundreds of files.
fn large() -> Trace {
    let layers = ["base", "runtime", "deps", "cuda", "torch", "app", "models", "config", "ninth", "tenth"];
    let mut touches = Vec::new();
    let mut at = 0;
    for file in 0..600_u64 {
        let noise = file.wrapping_mul(2_654_435_761) % 1000;
        at += 500 + noise * 7;
        let size = 1 << (8 + noise % 17);
        let from = match noise % 10 {
            0..3 => Origin::Demand,
            3..8 => Origin::Prefetch,
            _ => Origin::Local,
        };
        let stall = if from == Origin::Demand { 3000 + noise * noise / 5 } else { 0 };
        let layer = layers[usize::try_from(file / 64).expect("small")];
        let path = format!("/opt/app/lib/package_{}/file_{file}.so", file % 37);
        touches.push(read(&path, layer, size, 0..size / 2 + 1, at, from, stall));
    }
    let mut trace = trace(touches);
    trace.header.image = "registry.example/team/vision-service:2026-11".to_owned();
    trace.header.command = vec!["python".to_owned(), "-m".to_owned(), "service".to_owned()];
    trace.header.ready = Some(Duration::from_micros(at));
    trace
}

/// Writes the picture to a file for inspection.
fn drawn(name: &str, trace: &Trace) -> String {
    let svg = plot(trace);
    if let Some(folder) = std::env::var_os("TARPON_PLOTS") {
        std::fs::write(std::path::Path::new(&folder).join(name), &svg).expect("written");
    }
    svg
}

#[test]
fn a_small_start_is_drawn_file_by_file() {
    insta::assert_snapshot!(drawn("small.svg", &small()));
}

#[test]
fn a_large_start_is_one_page() {
    let svg = drawn("large.svg", &large());
    assert_eq!(svg, plot(&large()), "the same trace gives the same picture");
    assert!(svg.len() < 600 * 1000, "{} bytes", svg.len());
    let titles = svg.matches("<title>/opt/app/lib/").count();
    let names = svg.matches("class=\"name").count();
    assert_eq!(titles, 600, "the pointer finds every file");
    assert!((30..100).contains(&names), "{names} names find room");
}

#[test]
fn a_name_stays_text() {
    let mut hostile = small();
    hostile.header.image = "</text><script>alert(1)</script>".to_owned();
    hostile.header.command = vec!["a\0b\x1b[2J".to_owned()];
    hostile.touches[0].path = Some("\"><image href='https://example.com'/>\u{202e}&amp;".to_owned());
    let svg = drawn("hostile.svg", &hostile);
    assert!(!svg.contains("<script") && !svg.contains("<image") && !svg.contains('\u{202e}'));
    assert!(!svg.contains(|c: char| c.is_control() && c != '\n'));
    assert!(svg.contains("&lt;image href="));
}

#[test]
fn nothing_touched_is_a_picture_too() {
    let svg = drawn("empty.svg", &Trace { header: header(), touches: Vec::new() });
    assert!(svg.contains("nothing was touched") && svg.ends_with("</svg>\n"));
}

#[test]
fn a_trace_of_any_size_is_a_page_of_bounded_size() {
    let touches: Vec<_> = (0..100_000).map(|n: u64| touch(&(n / 10).to_string(), 1 << 43, n..n + 1, n * 800)).collect();
    let svg = plot(&trace(touches));
    assert!(svg.len() < 8 << 20, "{} bytes", svg.len());
    assert!(svg.contains("and 6000 files more"));
}
