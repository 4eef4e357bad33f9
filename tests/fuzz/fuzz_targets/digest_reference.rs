//! libFuzzer around `tarpon_testkit::fuzz::digest_reference`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::digest_reference(data));
