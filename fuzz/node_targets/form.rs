#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| scheduler_node::fuzz::form(data));
