//! libFuzzer around `tarpon_testkit::fuzz::fuse_requests`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::fuse_requests(data));
