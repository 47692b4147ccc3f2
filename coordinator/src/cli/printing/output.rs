//! Printing results: JSON for programs, tables for people.

use std::fmt;
use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;

/// Prints one line to standard output. Unlike `println!` it does not panic where the reader has gone.
///
/// # Errors
/// Standard output's.
pub fn line(text: fmt::Arguments<'_>) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_fmt(text)?;
    Ok(writeln!(out)?)
}

/// Writes a remark to standard error. Failures to write are ignored.
pub fn remark(text: fmt::Arguments<'_>) {
    let mut out = io::stderr().lock();
    let _ = out.write_fmt(text).and_then(|()| writeln!(out));
}

/// Prints one JSON value and a newline.
pub fn json(value: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// A text from elsewhere as one line of a terminal: what would move its cursor or change its colours is escaped.
pub fn plain(text: &str) -> String {
    let shown =
        |c: char| if c.is_control() { c.escape_debug().collect::<String>() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Prints rows under a head, each column as wide as its widest cell, numbers to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> Result<()> {
    let mut out = io::stdout().lock();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| plain(cell)).collect()).collect();
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count());
        cells.chain([head[i].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let heads: Vec<String> = head.iter().map(|h| (*h).to_string()).collect();
    for row in std::iter::once(&heads).chain(&rows) {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(c, w)| pad(c, *w)).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

fn pad(cell: &str, width: usize) -> String {
    let is_number = cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    if is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_elsewhere_moves_the_cursor() {
        assert_eq!(plain("a\u{1b}[2J\nb\tc é"), "a\\u{1b}[2J\\nb\\tc é");
    }
}
