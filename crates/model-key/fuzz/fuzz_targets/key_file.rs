#![no_main]

#[path = "../../tests/fuzz_body/mod.rs"]
mod fuzz_body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_body::key_file(bytes));
