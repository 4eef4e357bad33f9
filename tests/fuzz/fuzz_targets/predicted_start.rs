//! libFuzzer around `tarpon_testkit::fuzz::predicted_start`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::predicted_start(data));
