//! The configuration file. Any text is valid, or each problem has a line of the text.

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
