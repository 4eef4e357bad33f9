//! libFuzzer around `tarpon_testkit::fuzz::registries_conf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::registries_conf(data));
