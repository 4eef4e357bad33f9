//! libFuzzer around `tarpon_testkit::fuzz::boot_index`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tarpon_testkit::fuzz::boot_index(data));
