//! The file of API keys. Any text gives valid keys, or an error.

#![no_main]

use brigade_line::keys::store::{MAX_KEYS, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(keys) = parse(text) {
        assert!(keys.len() <= MAX_KEYS);
        assert!(keys.iter().all(|key| key.key_hash().is_some() && key.check_limits().is_ok()));
    }
});
