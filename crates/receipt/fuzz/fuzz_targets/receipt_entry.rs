#![no_main]

#[path = "../../tests/fuzz_body/mod.rs"]
#[allow(dead_code, reason = "each target uses one body")]
mod fuzz_body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_body::receipt_entry(bytes));
