//! libFuzzer around `tarpon_testkit::fuzz::index_lock`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::index_lock(data));
