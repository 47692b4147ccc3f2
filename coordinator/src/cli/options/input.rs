//! Reads the user's inputs: texts from files or standard input, and model files.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use brigade_proto::net::with_causes;
use brigade_text::MAX_TEXT_BYTES;

/// The text of a file, `-` being standard input.
///
/// # Errors
/// The file cannot be read, is not UTF-8, or is longer than a tokenizer takes.
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

/// The text that is piped into this process: `None` on a terminal, or where nothing comes. Some environments leave
/// a pipe open for ever: with `patience`, one that says nothing for so long counts as none.
///
/// # Errors
/// As [`read_text`].
pub fn piped_text(patience: Option<Duration>) -> Result<Option<String>> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let (send, receive) = mpsc::channel();
    // Left behind if nothing ever comes; the process ends without it.
    std::thread::spawn(move || {
        let text = read_text(Path::new("-"));
        // The receiver is gone when patience has ended.
        let _ = send.send(text);
    });
    let text = match patience {
        Some(patience) => match receive.recv_timeout(patience) {
            Ok(text) => text?,
            Err(_) => return Ok(None),
        },
        None => receive.recv().context("standard input")??,
    };
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Opens a model file with `open`; a failure names the file once.
///
/// # Errors
/// The errors of `open`.
pub fn open_model<T, E: std::error::Error>(
    path: &Path,
    open: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T> {
    open(path).map_err(|error| {
        let (what, name) = (with_causes(&error), path.display().to_string());
        if what.contains(&name) {
            anyhow!("cannot open {what}")
        } else {
            anyhow!("cannot open {name}: {what}")
        }
    })
}
