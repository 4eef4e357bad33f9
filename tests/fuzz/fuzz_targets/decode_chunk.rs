//! libFuzzer around `tarpon_testkit::fuzz::decode_chunk`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::decode_chunk(data));
