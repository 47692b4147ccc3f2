//! What all threads of a `brigade` process go through: its allocator and its log.
//!
//! This is a crate for its level of optimisation. Each allocation and each event of every other crate runs code that is
//! compiled here. In the binary itself, which is compiled at level 0, an allocation took five calls more.

mod log_text;

use std::io::IsTerminal as _;

use mimalloc::MiMalloc;
use tracing_subscriber::EnvFilter;

use log_text::TextFields;

/// Large messages come and go with every ubatch; this allocator keeps their pages.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How lines of the log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Text for people, in colours on a terminal if `colours` is set.
    Text {
        /// Whether the user wants colours.
        colours: bool,
    },
    /// One JSON object each.
    Json,
}

/// Writes the log to standard error from now on. The environment variable `RUST_LOG` decides what is written, and `default`
/// where it is not set or cannot be read.
///
/// # Panics
/// The process has a log already.
pub fn set_up_logs(default: &str, lines: Lines) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    match lines {
        Lines::Text { colours } => {
            let has_colours = colours && std::io::stderr().is_terminal();
            logs.with_ansi(has_colours).fmt_fields(TextFields).init();
        }
        Lines::Json => logs.json().init(),
    }
}
