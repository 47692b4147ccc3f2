//! The progress bar on stderr while a model loads. Hidden where stderr is no terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Look of the bar.
const TEMPLATE: &str = "{spinner} {msg} {bar:30} {bytes}/{total_bytes}";

/// Look while no size is known.
const SPINNER: &str = "{spinner} {msg}";

/// A bar that disappears when dropped.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar that shows nothing yet.
    pub fn new() -> Self {
        Self(ProgressBar::new(0))
    }

    /// Shows how far something is.
    pub fn show(&self, what: &str, done_bytes: u64, total_bytes: u64) {
        let template = if total_bytes == 0 { SPINNER } else { TEMPLATE };
        let style = ProgressStyle::with_template(template).expect("the templates above are valid");
        self.0.set_style(style);
        self.0.set_message(what.to_string());
        self.0.set_length(total_bytes);
        self.0.set_position(done_bytes);
    }

    /// Shows a sentence.
    pub fn say(&self, what: &str) {
        self.show(what, 0, 0);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
