//! Which combinations of a test's cases run: all of them in `cargo xtask test --all`, otherwise a part.

/// The part of the cases that runs otherwise: a third, with which the slowest programs take a few seconds.
const PART: u32 = 3;

/// Whether all combinations are tested.
pub fn is_full() -> bool {
    std::env::var_os("TARPON_TEST_ALL").is_some()
}

/// Number of random cases to test, out of the `full` number.
pub fn cases(full: u32) -> u32 {
    if is_full() { full } else { full.div_ceil(PART) }
}
