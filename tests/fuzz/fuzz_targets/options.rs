//! The file of options: whatever its text, it is right, or what is wrong has a line of the text.

#![no_main]

use std::path::Path;

use brigade_coordinator::cli::config::wrong_in;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let lines = text.lines().count().max(1);
    for problem in wrong_in(Path::new("brigade.toml"), text) {
        assert!(problem.at.line <= lines + 1, "{problem}");
        assert!(!problem.to_string().is_empty());
    }
});
