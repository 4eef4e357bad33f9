//! libFuzzer around `tarpon_testkit::fuzz::spanned_layer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::spanned_layer(data));
