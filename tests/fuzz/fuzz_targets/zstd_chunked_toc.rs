//! libFuzzer around `tarpon_testkit::fuzz::zstd_chunked_toc`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::zstd_chunked_toc(data));
