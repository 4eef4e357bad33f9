//! Which combinations of a test's cases run: all of them in `cargo xtask test --all`, otherwise a part.

/// Whether all combinations are tested.
pub fn is_full() -> bool {
    std::env::var_os("TARPON_TEST_ALL").is_some()
}
