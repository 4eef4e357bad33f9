//! libFuzzer around `tarpon_testkit::fuzz::content_range`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::content_range(data));
