//! The merge and the EROFS image against a naive model, over random stacks of layers.

use proptest::prelude::*;
use tarpon_testkit::{fuzz, matrix, stacks, tree_model};
use tarpon_tree::merge;

proptest! {
    #![proptest_config(ProptestConfig { cases: matrix::cases(512), ..ProptestConfig::default() })]

    #[test]
    fn merged_written_and_read_back_a_stack_shows_what_the_model_shows(
        bytes in proptest::collection::vec(any::<u8>(), 0..700),
    ) {
        fuzz::tree_build(&bytes);
    }

    #[test]
    fn the_order_of_entries_inside_layers_does_not_matter(
        bytes in proptest::collection::vec(any::<u8>(), 0..700),
        seed in any::<u64>(),
    ) {
        let layers = stacks::from_bytes(&bytes);
        let mut shuffled = layers.clone();
        let mut state = seed | 1;
        for layer in &mut shuffled {
            for at in (1..layer.entries.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                layer.entries.swap(at, usize::try_from(state >> 33).unwrap() % (at + 1));
            }
        }
        prop_assert_eq!(merge(&shuffled).ok().map(|tree| tree.dump()), merge(&layers).ok().map(|tree| tree.dump()));
    }
}

#[test]
fn most_random_stacks_are_not_refused_and_use_every_rule() {
    let mut accepted = 0;
    for seed in 0..200_u64 {
        let mut state = seed + 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u8::try_from(state >> 56).unwrap()
        };
        let bytes: Vec<u8> = (0..500).map(|_| next()).collect();
        accepted += usize::from(tree_model::dump(&stacks::from_bytes(&bytes)).is_some());
    }
    assert!(accepted > 80, "{accepted} of 200");
}
