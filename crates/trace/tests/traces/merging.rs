//! Against a model in which every byte has the earliest time at which a trace touched it.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tarpon_trace::{MergeError, Origin, Touch, Trace, merge};

use crate::{id, read, touch, trace};

const SIZE: u64 = 40;

/// Object and byte → when.
type Model = BTreeMap<(String, u64), u64>;

fn names() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("c")]
}

/// Touches in the order of time; bytes may be in several.
fn any_trace() -> impl Strategy<Value = Trace> {
    let touches = prop::collection::vec((names(), 0..SIZE, 1..12_u64, 0..30_u64), 0..14);
    touches.prop_map(|touches| {
        let touch = |(name, start, length, at)| touch(name, SIZE, start..SIZE.min(start + length), at);
        let mut touches: Vec<Touch> = touches.into_iter().map(touch).collect();
        touches.sort_by_key(|touch| touch.at);
        trace(touches)
    })
}

fn model(traces: &[Trace]) -> Model {
    let mut model = Model::new();
    for touch in traces.iter().flat_map(|trace| &trace.touches) {
        let at = u64::try_from(touch.at.as_micros()).expect("small");
        for byte in touch.range.clone() {
            let when = model.entry((touch.object.to_string(), byte)).or_insert(at);
            *when = at.min(*when);
        }
    }
    model
}

fn bytes(trace: &Trace) -> u64 {
    trace.touches.iter().map(|touch| touch.range.end - touch.range.start).sum()
}

proptest! {
    #[test]
    fn the_union_has_every_byte_once_at_its_earliest_time(traces in prop::collection::vec(any_trace(), 1..4)) {
        let merged = merge(&traces).expect("sizes agree");
        let expected = model(&traces);
        prop_assert_eq!(model(std::slice::from_ref(&merged)), expected.clone());
        prop_assert_eq!(bytes(&merged), expected.len() as u64);
        prop_assert_eq!(Trace::read(&merged.write()), Ok(merged.clone()), "it is a trace: in order, nothing twice");
        prop_assert_eq!(merged.header, traces[0].header.clone());
    }

    #[test]
    fn neither_order_nor_repetition_changes_the_union(
        traces in prop::collection::vec(any_trace(), 1..4),
        turn in 0..4_usize,
    ) {
        let merged = merge(&traces).expect("sizes agree");
        let mut others = traces.clone();
        others.reverse();
        let turn = turn % others.len();
        others.rotate_left(turn);
        others.push(merged.clone());
        others.extend(traces);
        prop_assert_eq!(&merge(&others).expect("sizes agree").touches, &merged.touches);
        prop_assert_eq!(merge(std::slice::from_ref(&merged)).expect("one"), merged);
    }

    #[test]
    fn unions_of_unions_are_unions(a in any_trace(), b in any_trace(), c in any_trace()) {
        let two = |a: &Trace, b: &Trace| merge(&[a.clone(), b.clone()]).expect("sizes agree");
        prop_assert_eq!(two(&two(&a, &b), &c), two(&a, &two(&b, &c)));
    }
}

#[test]
fn a_merge_omits_data_of_a_single_start_and_keeps_hints() {
    let first = trace([read("/b", "layer", 10, 0..10, 5, Origin::Demand, 70)]);
    let mut second = trace([read("/b", "other", 10, 0..10, 4, Origin::Local, 0)]);
    second.touches[0].path = Some("/a".to_owned());
    for traces in [[first.clone(), second.clone()], [second, first]] {
        let merged = merge(&traces).expect("sizes agree").touches;
        let expected = Touch { path: Some("/a".to_owned()), layer: Some(id("other")), ..touch("/b", 10, 0..10, 4) };
        assert_eq!(merged, [expected]);
        assert_eq!(merged[0].stall, Duration::ZERO);
    }
}

#[test]
fn traces_that_contradict_each_other_have_no_union() {
    let traces = [trace([touch("a", 10, 0..10, 0)]), trace([touch("a", 20, 0..10, 0)])];
    let error = MergeError::Sizes { object: id("a"), first: 10, second: 20 };
    assert_eq!(merge(&traces), Err(error));
    assert_eq!(merge(&[]), Err(MergeError::Nothing));
}

#[test]
fn an_incomplete_part_makes_an_incomplete_merge() {
    let (whole, mut part) = (trace([]), trace([]));
    part.header.truncated = true;
    assert!(merge(&[whole.clone(), part]).expect("merged").header.truncated);
    assert!(!merge(&[whole]).expect("merged").header.truncated);
}
