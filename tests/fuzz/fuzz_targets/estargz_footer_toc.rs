//! libFuzzer around `tarpon_testkit::fuzz::estargz_footer_toc`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::estargz_footer_toc(data));
