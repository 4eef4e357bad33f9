//! libFuzzer around `tarpon_testkit::fuzz::tree_build`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::tree_build(data));
