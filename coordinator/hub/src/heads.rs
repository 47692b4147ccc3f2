//! The beginnings of a model's files: metadata, tokenizer and the list of tensors, without the weights.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::address::{content_range, refuse_page};
use super::client::{Client, Part};
use super::download::check_magic;
use super::error::HubError;
use super::huggingface::{Resolved, is_file, refuse};
use super::name::without_query;

/// Bytes of the first file that are asked for at first. Most headers with a vocabulary are shorter than a few of these.
const FIRST_BYTES: u64 = 256 << 10;

/// The same of later files of a split model, which have a list of tensors alone.
const LATER_BYTES: u64 = 64 << 10;

/// How much more is asked for where that was not all.
const GROWTH: u64 = 4;

/// Most bytes of one file; the largest vocabularies take some ten million.
const MAX_BYTES: u64 = 256 << 20;

/// Connections in a row that may break without a byte.
const MAX_IN_VAIN: u32 = 5;

/// A model of which only the beginnings are here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The first file, which is enough to read the header.
    pub path: PathBuf,
    /// Bytes that were fetched.
    pub fetched: u64,
    /// Bytes of the whole model.
    pub size: u64,
}

/// Fetches as much of each file as `is_enough` of the first one's path wants, and at most [`MAX_BYTES`] of each.
///
/// # Errors
/// The source has no such files, or does not answer.
pub fn fetch(
    client: &Client,
    source: &str,
    resolved: &Resolved,
    targets: &[PathBuf],
    is_enough: &dyn Fn(&Path) -> bool,
) -> Result<Beginning, HubError> {
    let files = &resolved.choice.files;
    let size = files.iter().map(|file| file.size).sum();
    let path = targets.first().cloned().unwrap_or_default();
    if targets.iter().all(|target| target.is_file()) && is_enough(&path) {
        return Ok(Beginning { path, fetched: 0, size });
    }
    let mut heads = vec![Vec::new(); files.len()];
    let mut factor = 1;
    loop {
        for (i, ((head, file), (url, target))) in
            heads.iter_mut().zip(files).zip(resolved.urls.iter().zip(targets)).enumerate()
        {
            let first = if i == 0 { FIRST_BYTES } else { LATER_BYTES };
            let until = first.saturating_mul(factor).min(MAX_BYTES).min(file.size);
            extend(client, source, url, head, until)?;
            write(target, head)?;
        }
        let fetched = heads.iter().map(|head: &Vec<u8>| head.len() as u64).sum();
        let is_all = heads
            .iter()
            .zip(files)
            .all(|(head, file)| head.len() as u64 >= file.size.min(MAX_BYTES));
        if is_enough(&path) || is_all {
            return Ok(Beginning { path, fetched, size });
        }
        factor *= GROWTH;
    }
}

/// Reads on to `until`, over connections that break. A server without ranges sends all of the file, of which the rest is not
/// read.
fn extend(
    client: &Client,
    source: &str,
    url: &str,
    head: &mut Vec<u8>,
    until: u64,
) -> Result<(), HubError> {
    let mut in_vain = 0;
    while (head.len() as u64) < until {
        let before = head.len();
        let why = stretch(client, source, url, head, until)?;
        in_vain = if head.len() > before { 0 } else { in_vain + 1 };
        if in_vain == MAX_IN_VAIN {
            return Err(HubError::Broken { url: without_query(url).to_string(), why });
        }
    }
    Ok(())
}

/// Reads as much as one connection brings. Returns the reason why it is not all.
fn stretch(
    client: &Client,
    source: &str,
    url: &str,
    head: &mut Vec<u8>,
    until: u64,
) -> Result<String, HubError> {
    let have = head.len() as u64;
    let mut answer = client.get(url, Part { from: have, until: Some(until), etag: None })?;
    if !is_file(&answer) {
        let host = url.split('/').take(3).collect::<Vec<_>>().join("/");
        refuse(&mut answer, &host, source)?;
    }
    refuse_page(&answer)?;
    let from = match answer.status {
        206 => content_range(&answer.head).map_or(have, |(from, _)| from),
        _ => 0,
    };
    if from != have {
        head.clear();
    }
    if from > head.len() as u64 {
        return Ok(format!("it sends from byte {from}, but byte {have} was asked for"));
    }
    let most = until - head.len() as u64;
    let mut reader = answer.body.with_config().limit(u64::MAX).reader().take(most);
    let read = reader.read_to_end(head);
    if !head.is_empty() {
        check_magic(&answer.url, head)?;
    }
    Ok(read.map_or_else(|error| error.to_string(), |_| "it ended early".to_string()))
}

/// Writes the file and renames it, so that other processes see it whole.
fn write(target: &Path, head: &[u8]) -> Result<(), HubError> {
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(HubError::io("make", folder))?;
    }
    let new = target.with_extension(format!("{}.part", std::process::id()));
    fs::write(&new, head)
        .and_then(|()| fs::rename(&new, target))
        .map_err(HubError::io("write", target))
}
