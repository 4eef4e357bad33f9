use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proptest::prelude::*;
use tarpon_oci::Digest;
use tarpon_trace::{PIECE_BYTES, Touch, WHOLE_BYTES, pieces};

use crate::{id, touch, trace};

const K: u64 = 1024;
const LARGE: u64 = 1000 * K;

fn taken(touches: Vec<Touch>) -> Vec<(Digest, u64, Range<u64>)> {
    pieces(&trace(touches)).into_iter().map(|piece| (piece.object, piece.size, piece.range)).collect()
}

#[test]
fn small_objects_are_taken_whole_and_once() {
    let (small, next) = (WHOLE_BYTES, WHOLE_BYTES + 1);
    let touches =
        vec![touch("small", small, 100..101, 0), touch("next", next, 100..101, 1), touch("small", small, 500..600, 2)];
    assert_eq!(taken(touches), [(id("small"), small, 0..small), (id("next"), next, 0..PIECE_BYTES)]);
}

#[test]
fn of_large_objects_aligned_pieces_are_taken_in_the_order_of_first_touch() {
    let touches = vec![
        touch("a", LARGE, 40 * K..41 * K, 0),
        touch("a", LARGE, 64 * K..65 * K, 1),
        touch("b", LARGE, 0..33 * K, 2),
        touch("a", LARGE, 90 * K..100 * K, 3),
        touch("a", LARGE, LARGE - 1..LARGE, 4),
    ];
    let a = |range| (id("a"), LARGE, range);
    assert_eq!(
        taken(touches),
        [a(32 * K..96 * K), (id("b"), LARGE, 0..64 * K), a(96 * K..128 * K), a(LARGE / (32 * K) * (32 * K)..LARGE),]
    );
}

#[test]
fn a_large_object_of_which_most_is_touched_is_taken_whole() {
    let three_quarters = LARGE / 4 * 3;
    let at_limit = vec![touch("a", LARGE, 0..three_quarters, 0)];
    assert_eq!(taken(at_limit), [(id("a"), LARGE, 0..768 * K)]);
    let beyond = vec![touch("a", LARGE, 0..K, 0), touch("b", K, 0..1, 1), touch("a", LARGE, K..three_quarters + 1, 2)];
    assert_eq!(taken(beyond), [(id("a"), LARGE, 0..LARGE), (id("b"), K, 0..K)], "where its first touch was");
}

#[test]
fn an_object_of_terabytes_costs_no_more_than_its_touches() {
    let (size, end) = (1 << 43, 1 << 42);
    assert_eq!(taken(vec![touch("a", size, 1..end, 0)]), [(id("a"), size, 0..end)]);
}

proptest! {
    #[test]
    fn everything_touched_is_taken_once_and_nothing_that_is_far_from_it(
        touches in prop::collection::vec((0..3_usize, 0..300 * K, 1..40 * K), 1..12),
    ) {
        let objects = [("a", 300 * K), ("b", 170 * K + 5), ("c", 100 * K)];
        let mut all = Vec::new();
        let mut bytes: BTreeMap<Digest, BTreeSet<u64>> = BTreeMap::new();
        for (object, start, length) in touches {
            let (name, size) = objects[object];
            let range = start % size..size.min(start % size + length);
            // Steps of a few bytes, so that the model stays small.
            bytes.entry(id(name)).or_default().extend(range.clone().step_by(512).chain([range.end - 1]));
            all.push(touch(name, size, range, 0));
        }
        let taken = taken(all);
        for (object, touched) in bytes {
            let parts: Vec<_> = taken.iter().filter(|piece| piece.0 == object).map(|piece| piece.2.clone()).collect();
            for byte in &touched {
                prop_assert_eq!(parts.iter().filter(|part| part.contains(byte)).count(), 1, "byte {}", byte);
            }
            let size = taken.iter().find(|piece| piece.0 == object).expect("taken").1;
            let whole = parts.first() == Some(&(0..size));
            for part in parts.iter().filter(|_| !whole) {
                prop_assert_eq!(part.start % PIECE_BYTES, 0);
                prop_assert!(part.end % PIECE_BYTES == 0 || part.end == size);
                for piece in (part.start..part.end).step_by(usize::try_from(PIECE_BYTES).expect("small")) {
                    prop_assert!(touched.range(piece..piece + PIECE_BYTES).next().is_some(), "{piece} is not touched");
                }
            }
        }
    }
}
