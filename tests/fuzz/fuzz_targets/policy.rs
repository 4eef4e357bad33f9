//! libFuzzer around `tarpon_testkit::fuzz::policy`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::policy(data));
