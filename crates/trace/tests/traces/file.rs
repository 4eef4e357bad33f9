use std::fs;
use std::path::Path;
use std::time::Duration;

use tarpon_trace::{Header, InvalidTrace, LINE_BYTES, Origin, Problem, TOUCHES, Trace};

use crate::{header, id, read, touch, trace};

#[test]
fn a_file_is_lines_of_json_and_reads_back_as_it_was() {
    let touches = [
        read("/usr/lib/x.so", "layer", 123_456, 0..32_768, 1234, Origin::Demand, 987),
        touch("y", 10, 0..10, 1300),
        read("/gr\u{fc}n \"quoted\"\n", "layer", 5, 0..5, 1300, Origin::Local, 0),
    ];
    let whole = trace(touches);
    let text = String::from_utf8(whole.write()).expect("JSON");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..2],
        [
            format!(
                r#"{{"tarpon-trace":1,"image":"docker.io/library/python:3.12","manifest":"{}","profile":"default","command":["python","-c","import numpy"],"ready_micros":412345}}"#,
                id("manifest")
            ),
            format!(
                r#"{{"object":"{}","size":123456,"start":0,"end":32768,"micros":1234,"layer":"{}","path":"/usr/lib/x.so","from":"demand","stall":987}}"#,
                id("/usr/lib/x.so"),
                id("layer")
            ),
        ]
    );
    assert_eq!(lines[2], format!(r#"{{"object":"{}","size":10,"start":0,"end":10,"micros":1300}}"#, id("y")));
    assert_eq!(Trace::read(text.as_bytes()), Ok(whole.clone()));
    assert_eq!(Trace::read(text.trim_end().as_bytes()), Ok(whole), "the last line needs no end");
}

#[test]
fn optional_fields_may_be_missing_and_unknown_ones_are_ignored() {
    let text =
        format!(r#"{{"profile":"p","later":[1,{{}}],"manifest":"{}","image":"i","tarpon-trace":1}}"#, id("manifest"));
    let expected =
        Header { image: "i".to_owned(), profile: "p".to_owned(), command: Vec::new(), ready: None, ..header() };
    assert_eq!(Trace::read(text.as_bytes()).expect("sound").header, expected);
}

/// The header, and one line that differs from a good one.
fn second_line(change: &[(&str, &str)]) -> Vec<u8> {
    let mut text = String::from_utf8(trace([touch("a", 100, 10..20, 5)]).write()).expect("JSON");
    for (from, to) in change {
        assert!(text.contains(from), "{from} is not in {text}");
        text = text.replace(from, to);
    }
    text.into_bytes()
}

fn refusal(bytes: &[u8]) -> String {
    Trace::read(bytes).expect_err("refused").to_string()
}

#[test]
fn a_line_that_is_wrong_is_named() {
    let long_path = format!("\"path\":\"{}\",\"size\":100", "a".repeat(4097));
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", Vec::new()),
        ("only an end of line", b"\n".to_vec()),
        ("another format", b"GIF89a\x00\x01".to_vec()),
        ("other JSON", b"{\"version\":1}\n".to_vec()),
        ("the fields as a list", second_line(&[("{\"object\":", "["), ("\"micros\":5}", "5]")])),
        ("a later version", second_line(&[("\"tarpon-trace\":1", "\"tarpon-trace\":2")])),
        ("a header without an image", second_line(&[("\"image\"", "\"picture\"")])),
        ("a start of weeks", second_line(&[("412345", "412345000000")])),
        ("an empty range", second_line(&[("\"end\":20", "\"end\":10")])),
        ("a range backwards", second_line(&[("\"end\":20", "\"end\":9")])),
        ("a range beyond the end", second_line(&[("\"end\":20", "\"end\":101")])),
        ("an object beyond any layer", second_line(&[("\"size\":100", "\"size\":9223372036854775807")])),
        ("a negative size", second_line(&[("\"size\":100", "\"size\":-1")])),
        ("a size twice", second_line(&[("\"size\":100", "\"size\":100,\"size\":200")])),
        ("no size", second_line(&[("\"size\":100,", "")])),
        ("another algorithm", second_line(&[("\"object\":\"sha256", "\"object\":\"sha512")])),
        ("an origin that does not exist", second_line(&[("\"size\":100", "\"from\":\"moon\",\"size\":100")])),
        ("a touch after weeks", second_line(&[("\"micros\":5", "\"micros\":18446744073709551615")])),
        ("waiting for weeks", second_line(&[("\"micros\":5", "\"micros\":5,\"stall\":18446744073709551615")])),
        ("a path that is too long", second_line(&[("\"size\":100", &long_path)])),
        ("an empty line", second_line(&[("}\n{", "}\n\n{")])),
        ("two objects in a line", second_line(&[("}\n{", "}{")])),
        ("a line that breaks off", second_line(&[("\"micros\":5}", "\"micros\":")])),
        ("bytes that are not UTF-8", [second_line(&[]), b"{\"path\":\"\xff\"}".to_vec()].concat()),
    ];
    let mut table = String::new();
    for (name, bytes) in cases {
        table.push_str(&format!("{name}: {}\n", refusal(&bytes)));
    }
    insta::assert_snapshot!(table);
}

#[test]
fn lines_that_contradict_each_other_are_refused() {
    let refused = |touches: Vec<_>| Trace::read(&trace(touches).write());
    let at_three = |problem| Err(InvalidTrace { line: 3, problem });
    let first = touch("a", 100, 10..20, 5);
    assert_eq!(refused(vec![first.clone(), touch("a", 100, 19..30, 6)]), at_three(Problem::Twice));
    assert_eq!(refused(vec![first.clone(), touch("b", 100, 0..1, 4)]), at_three(Problem::Order));
    let sizes = Problem::Sizes { object: id("a"), first: 100, second: 200 };
    assert_eq!(refused(vec![first, touch("a", 200, 30..40, 6)]), at_three(sizes));
}

#[test]
fn lines_and_their_number_are_bounded() {
    let mut long = trace([]);
    long.header.profile = "p".repeat(LINE_BYTES);
    assert_eq!(Trace::read(&long.write()), Err(InvalidTrace { line: 1, problem: Problem::LineTooLong }));

    let touches: Vec<_> = (0..=TOUCHES as u64).map(|n| touch("a", 1 << 40, 2 * n..2 * n + 1, 0)).collect();
    let many = Trace::read(&trace(touches).write());
    assert_eq!(many, Err(InvalidTrace { line: TOUCHES + 2, problem: Problem::TooManyTouches }));
}

#[test]
fn a_command_that_is_too_long_is_left_out() {
    let mut long = trace([touch("a", 1, 0..1, 0)]);
    long.header.command = vec!["x".repeat(LINE_BYTES)];
    let read = Trace::read(&long.write()).expect("it can be read");
    assert_eq!((read.header.command, read.touches), (Vec::new(), long.touches));
}

#[test]
fn times_are_kept_in_microseconds() {
    let mut fine = trace([touch("a", 1, 0..1, 0)]);
    fine.touches[0].at = Duration::from_nanos(1999);
    assert_eq!(Trace::read(&fine.write()).expect("sound").touches[0].at, Duration::from_micros(1));
}

#[test]
fn the_seeds_of_the_fuzz_target_go_through_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz/trace_file");
    let seeds: Vec<_> = fs::read_dir(folder).expect("a folder of seeds").collect();
    assert!(seeds.len() >= 8, "{} seeds", seeds.len());
    for seed in seeds {
        let seed = fs::read(seed.expect("readable").path()).expect("readable");
        tarpon_testkit::fuzz::trace_file(&seed);
        (0..seed.len()).for_each(|end| tarpon_testkit::fuzz::trace_file(&seed[..end]));
    }
}
