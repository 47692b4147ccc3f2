//! Shared code of benchmarks that have options of their own.

use std::process::ExitCode;

/// Runs a bench with its arguments; an error is printed behind its name. `cargo test --benches` asks for a smoke test
/// only, in which nothing runs.
pub fn main<O>(
    name: &str,
    options: impl FnOnce() -> Result<O, String>,
    run: impl FnOnce(&O) -> Result<(), String>,
) -> ExitCode {
    if std::env::args().any(|arg| arg == "--test") {
        return ExitCode::SUCCESS;
    }
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{name}: {what}");
            ExitCode::FAILURE
        }
    }
}
