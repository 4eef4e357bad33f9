//! libFuzzer around `tarpon_testkit::fuzz::chunk_table`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::chunk_table(data));
