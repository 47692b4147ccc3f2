//! Text from files and from standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use brigade_engine::text::MAX_TEXT_BYTES;

/// The text of a file, `-` being standard input.
///
/// # Errors
/// It cannot be read, is not UTF-8, or is longer than a tokenizer takes.
pub fn read_text(path: &Path) -> Result<String> {
    let name = path.display();
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).with_context(|| format!("cannot open {name}"))?)
    };
    let mut text = String::new();
    let limit = MAX_TEXT_BYTES as u64;
    let read = source.take(limit + 1).read_to_string(&mut text);
    let n = read.with_context(|| format!("cannot read {name} as UTF-8 text"))?;
    if n as u64 > limit {
        bail!("{name} is longer than {limit} bytes");
    }
    Ok(text)
}
