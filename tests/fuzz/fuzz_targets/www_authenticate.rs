//! libFuzzer around `tarpon_testkit::fuzz::www_authenticate`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::www_authenticate(data));
