//! libFuzzer around `tarpon_testkit::fuzz::http_responses`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::http_responses(data));
