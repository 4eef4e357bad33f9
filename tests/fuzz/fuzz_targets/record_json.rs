//! libFuzzer around `tarpon_testkit::fuzz::record_json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::record_json(data));
