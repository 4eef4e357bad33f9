//! How many starts in a row were equal.

use tarpon_trace::{Header, MOST_STARTS, Trace, starts_with};

use super::{header, id, touch, trace};

/// The trace of a start that touched these contents.
fn start(contents: std::ops::Range<u32>, starts: u32) -> Trace {
    let touches: Vec<_> =
        contents.zip(0..).map(|(content, micros)| touch(&content.to_string(), 10, 0..10, micros)).collect();
    Trace { header: Header { starts, ..header() }, touches }
}

#[test]
fn a_start_is_equal_if_nine_of_ten_contents_are_those_of_the_starts_before() {
    let earlier = start(0..90, 4);
    assert_eq!(starts_with(Some(&earlier), &start(0..90, 0)), 5);
    assert_eq!(starts_with(Some(&earlier), &start(0..100, 0)), 5, "90 of 100");
    assert_eq!(starts_with(Some(&earlier), &start(0..101, 0)), 1, "90 of 101");
    assert_eq!(starts_with(Some(&earlier), &start(9..90, 0)), 5, "81 of 90");
    assert_eq!(starts_with(Some(&earlier), &start(10..90, 0)), 1, "80 of 90");
    assert_eq!(starts_with(None, &start(0..90, 0)), 1);
}

#[test]
fn a_start_of_another_manifest_is_the_first() {
    let mut other = start(0..90, 0);
    other.header.manifest = id("another manifest");
    assert_eq!(starts_with(Some(&start(0..90, 4)), &other), 1);
}

#[test]
fn the_count_has_an_end_and_begins_after_traces_without_one() {
    assert_eq!(starts_with(Some(&start(0..9, MOST_STARTS)), &start(0..9, 0)), MOST_STARTS);
    assert_eq!(starts_with(Some(&start(0..9, 0)), &start(0..9, 0)), 1);
}

#[test]
fn a_file_has_the_count_and_may_be_without() {
    let counted = start(0..1, 3);
    let text = String::from_utf8(counted.write()).expect("JSON");
    assert!(text.contains(r#","starts":3}"#), "{text}");
    assert_eq!(Trace::read(text.as_bytes()), Ok(counted));
    let uncounted = trace([touch("0", 10, 0..10, 0)]);
    assert_eq!(Trace::read(text.replace(r#","starts":3"#, "").as_bytes()), Ok(uncounted.clone()));
    assert!(!String::from_utf8(uncounted.write()).expect("JSON").contains("starts"), "as programs before wrote it");
}
