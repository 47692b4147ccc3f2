//! The progress bar on standard error, while a model loads, a prompt is computed or a file is written. Without a
//! terminal there is no bar.

use std::cell::RefCell;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::printing::output;

/// Look of the bar.
const TEMPLATE: &str = "{spinner} {msg} {bar:30} {bytes}/{total_bytes}";

/// Look while rows are computed.
const ROWS: &str = "{spinner} {msg} {bar:30} {pos} of {len} rows";

/// Look of a download.
const DOWNLOAD: &str = "{spinner} {msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";

/// Look while no size is known.
const SPINNER: &str = "{spinner} {msg}";

/// A bar that disappears when dropped; plain lines where NO_COLOR asks for no terminal tricks.
#[derive(Debug)]
pub struct Bar {
    bar: ProgressBar,
    /// The last line, where lines are shown.
    plain: Option<RefCell<String>>,
}

impl Bar {
    /// A bar that shows nothing yet.
    pub fn new() -> Self {
        Self::of(crate::cli::no_color())
    }

    fn of(plain: bool) -> Self {
        if plain {
            Self { bar: ProgressBar::hidden(), plain: Some(RefCell::default()) }
        } else {
            Self { bar: ProgressBar::new(0), plain: None }
        }
    }

    /// Shows how far something is.
    pub fn show(&self, what: &str, done_bytes: u64, total_bytes: u64) {
        let template = if total_bytes == 0 { SPINNER } else { TEMPLATE };
        self.draw(template, what, done_bytes, total_bytes);
    }

    /// Whether the bar is visible.
    pub fn is_drawn(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Shows how much of a model is there, how fast more comes and when all of it will be.
    pub fn download(&self, what: &str, done: u64, total: u64) {
        // Earlier bytes say nothing about the speed.
        let is_first = self.bar.length() != Some(total);
        self.draw(DOWNLOAD, what, done, total);
        if is_first {
            self.bar.reset_eta();
        }
    }

    /// Shows how many rows of how many are computed.
    pub fn rows(&self, what: &str, done: u64, total: u64) {
        let (done, tenths) = (done.min(total), done.min(total) * 10 / total.max(1));
        match &self.plain {
            Some(_) => self.line(&format!("{what}: {} % of {total} rows", tenths * 10)),
            None => self.draw(ROWS, what, done, total),
        }
    }

    /// A line of its own, where it says something new.
    fn line(&self, text: &str) {
        let Some(last) = &self.plain else { return };
        let is_new = last.replace(text.to_string()) != text;
        if is_new && std::io::stderr().is_terminal() {
            output::remark(format_args!("{text}"));
        }
    }

    fn draw(&self, template: &str, what: &str, done: u64, total: u64) {
        if self.plain.is_some() {
            return self.line(what);
        }
        let style = ProgressStyle::with_template(template).expect("the templates above are valid");
        self.bar.set_style(style);
        self.bar.set_message(what.to_string());
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    /// Shows a sentence in place of the figures.
    pub fn say(&self, what: &str) {
        self.show(what, 0, 0);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colour_nothing_is_drawn_over() {
        let bar = Bar::of(true);
        bar.show("loading", 1, 2);
        bar.show("loading", 2, 2);
        assert!(bar.bar.is_hidden());
        assert_eq!(*bar.plain.as_ref().unwrap().borrow(), "loading");
        assert!(Bar::of(false).plain.is_none());
    }

    #[test]
    fn without_colour_rows_are_told_in_tenths() {
        let bar = Bar::of(true);
        let last = || bar.plain.as_ref().unwrap().borrow().clone();
        bar.rows("computing the prompt", 512, 2000);
        assert_eq!(last(), "computing the prompt: 20 % of 2000 rows");
        bar.rows("computing the prompt", 2048, 2000);
        assert_eq!(last(), "computing the prompt: 100 % of 2000 rows");
    }

    #[test]
    fn rows_are_counted_to_the_prompts_end_and_no_further() {
        let bar = Bar::of(false);
        bar.rows("computing the prompt", 512, 2000);
        assert_eq!((bar.bar.position(), bar.bar.length()), (512, Some(2000)));
        bar.rows("computing the prompt", 2048, 2000);
        assert_eq!((bar.bar.position(), bar.bar.message()), (2000, "computing the prompt".into()));
    }
}
