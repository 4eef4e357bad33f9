//! The merge and the EROFS image against the kernel. Needs root, and a kernel that mounts EROFS from a plain file (6.12). Elsewhere
//! the tests print that and pass.
#![allow(clippy::print_stdout)]

mod detached;
mod dump;
mod image;
mod layers;
mod names;
mod tars;

use tarpon_layer::LayerIndex;
use tarpon_testkit::stacks;

/// A stack of layers, the same for the same seed. Some must be refused.
fn random_stack(seed: u64) -> Vec<LayerIndex> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u8::try_from(state >> 56).expect("eight bits")
    };
    stacks::from_bytes(&(0..600).map(|_| next()).collect::<Vec<_>>())
}
