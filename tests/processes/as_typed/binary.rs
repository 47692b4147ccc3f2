//! The binary itself: it starts, names its version, and explains every command.

use std::process::Command;

const COMMANDS: [&str; 11] = [
    "run",
    "serve",
    "worker",
    "plan",
    "inspect",
    "logits",
    "tokenize",
    "detokenize",
    "perplexity",
    "bench",
    "synth",
];

fn brigade(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_brigade"))
        .args(args)
        .output()
        .expect("the binary was built for this test");
    (output.status.success(), String::from_utf8(output.stdout).expect("UTF-8"))
}

fn the_version_is_the_packages() {
    let (ok, text) = brigade(&["--version"]);
    assert!(ok);
    assert_eq!(text.trim(), concat!("brigade ", env!("CARGO_PKG_VERSION")));
}

fn every_command_has_help_with_an_example() {
    for command in COMMANDS {
        let (ok, text) = brigade(&[command, "--help"]);
        assert!(ok, "{command}");
        let example = format!("brigade {command}");
        assert!(text.matches(&example).count() >= 2, "{command}: usage and an example:\n{text}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: the_version_is_the_packages, every_command_has_help_with_an_example;
];
