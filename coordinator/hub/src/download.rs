//! Downloads one file to its place: in pieces where the connection breaks, and verified before it gets its name.

use std::io::Read;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::address::{content_range, refuse_page, sha256_of, whole_size};
use super::choice::RemoteFile;
use super::client::{Answer, Client, Part, text};
use super::error::HubError;
use super::huggingface::{is_file, refuse};
use super::name::without_query;
use super::part::{PartFile, Whole};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Connections in a row that may break without a byte.
const MAX_IN_VAIN: u32 = 5;

/// The pause after one that broke.
const PAUSE: Duration = Duration::from_millis(200);

/// Why a connection brought nothing that broke nowhere.
const OTHER_PARTS: &str = "it is another file each time, or other parts come than were asked for";

/// The first bytes of every model file.
const MAGIC: &[u8] = b"GGUF";

/// Hears how many bytes of a file are there. An error of it ends the download.
pub type Progress<'a> = &'a mut dyn FnMut(u64) -> Result<(), HubError>;

/// A file to download.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The address of the file.
    pub url: &'a str,
    /// The file with its expected size and hash.
    pub file: &'a RemoteFile,
    /// The path to which it is written.
    pub target: &'a Path,
    /// The repository or name that it belongs to, for messages.
    pub source: &'a str,
}

/// Fetches the file and returns its SHA-256. `progress` gets the number of bytes that are there, and may end it.
///
/// # Errors
/// The source has another file or none, the connection breaks again and again, or the disk is full. Bytes that have
/// arrived stay, and the next call goes on behind them.
pub fn fetch(
    client: &Client,
    wanted: Wanted<'_>,
    progress: Progress<'_>,
) -> Result<String, HubError> {
    let RemoteFile { size, sha256, .. } = wanted.file;
    let whole = Whole { size: *size, sha256: sha256.clone(), etag: None };
    let mut part = PartFile::open(wanted.target, whole)?;
    let mut in_vain = 0;
    while part.length < *size {
        progress(part.length)?;
        let before = part.length;
        let broke = match stretch(client, wanted, &mut part, progress) {
            Ok(broke) => broke,
            Err(error @ HubError::NotGguf { .. }) => {
                part.discard();
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        in_vain = if part.length > before { 0 } else { in_vain + 1 };
        let url = without_query(wanted.url).to_string();
        let why = broke.unwrap_or_else(|| OTHER_PARTS.to_string());
        if in_vain == MAX_IN_VAIN {
            return Err(HubError::Broken { url, why });
        }
        if part.length < *size {
            tracing::info!(%url, %why, have = part.length, "the connection broke; going on");
            thread::sleep(PAUSE);
        }
    }
    progress(*size)?;
    part.finish(without_query(wanted.url))
}

/// Reads as much as one connection brings. Returns the reason if it broke.
fn stretch(
    client: &Client,
    wanted: Wanted<'_>,
    part: &mut PartFile,
    progress: Progress<'_>,
) -> Result<Option<String>, HubError> {
    let etag = part.whole.etag.clone();
    let mut answer =
        client.get(wanted.url, Part { from: part.length, until: None, etag: etag.as_deref() })?;
    if answer.status == 416 && part.length > 0 {
        return part.begin_anew(None).map(|()| None);
    }
    if !is_file(&answer) {
        let host = wanted.url.split('/').take(3).collect::<Vec<_>>().join("/");
        refuse(&mut answer, &host, wanted.source)?;
    }
    check(&answer, wanted.file)?;
    let now = strong_etag(&answer);
    let goes_on = answer.status == 206
        && content_range(&answer.head).map(|(from, _)| from) == Some(part.length);
    match (goes_on, &etag) {
        // A server without names for its states is trusted to have one only: the hash decides in the end.
        (true, had) if part.length == 0 || *had == now => {
            part.whole.etag = now;
            part.keep()?;
        }
        // The source changed: nothing of the old state is mixed with the new one.
        (true, _) => return part.begin_anew(None).map(|()| None),
        (false, _) if answer.status == 206 => return part.begin_anew(None).map(|()| None),
        (false, _) => part.begin_anew(now)?,
    }
    take(answer, wanted.file.size, part, progress)
}

fn take(
    answer: Answer,
    size: u64,
    part: &mut PartFile,
    progress: Progress<'_>,
) -> Result<Option<String>, HubError> {
    let Answer { url, body, .. } = answer;
    // One byte more than there may be shows a body without an end.
    let mut reader = body.into_with_config().limit(u64::MAX).reader().take(size - part.length + 1);
    let mut piece = vec![0; PIECE];
    loop {
        let n = match reader.read(&mut piece) {
            Ok(0) if part.length < size => {
                return Ok(Some(format!("it ended after {} of {size} bytes", part.length)));
            }
            Ok(0) => return Ok(None),
            Ok(n) => n,
            Err(error) => return Ok(Some(error.to_string())),
        };
        if part.length == 0 {
            check_magic(&url, &piece[..n])?;
        }
        if part.length + n as u64 > size {
            // The bytes of a wrong answer are discarded.
            part.begin_anew(None)?;
            let hint = "the source sends more than it says; ask whoever runs it".to_string();
            return Err(HubError::Length {
                url,
                got: format!("more than {size}"),
                expected: size,
                hint,
            });
        }
        part.write(&piece[..n])?;
        progress(part.length)?;
    }
}

/// Checks the answer's head: it must be the wanted file.
fn check(answer: &Answer, file: &RemoteFile) -> Result<(), HubError> {
    refuse_page(answer)?;
    if let Some(got) = whole_size(answer).filter(|got| *got != file.size) {
        let hint = "the source has changed, or says one length and sends another; brigade pull fetches the file that is there now";
        let (url, got, hint) = (answer.url.clone(), got.to_string(), hint.to_string());
        return Err(HubError::Length { url, got, expected: file.size, hint });
    }
    match (sha256_of(&answer.first), &file.sha256) {
        (Some(got), Some(expected)) if got != *expected => {
            Err(HubError::Hash { what: answer.url.clone(), got, expected: expected.clone() })
        }
        _ => Ok(()),
    }
}

/// The server's ETag of the file, if it stands for the exact bytes.
fn strong_etag(answer: &Answer) -> Option<String> {
    text(&answer.head, "etag").filter(|etag| etag.starts_with('"')).map(str::to_string)
}

/// Refuses what does not begin like a model file.
///
/// # Errors
/// The file begins otherwise.
pub fn check_magic(url: &str, start: &[u8]) -> Result<(), HubError> {
    let n = start.len().min(MAGIC.len());
    if start[..n] == MAGIC[..n] {
        return Ok(());
    }
    let is_page = start.trim_ascii_start().first() == Some(&b'<');
    let what = if is_page { "a web page (HTML)" } else { "something else" }.to_string();
    let hint =
        "is it the address of the file itself, and does a proxy or the site ask for a login?"
            .to_string();
    Err(HubError::NotGguf { url: url.to_string(), what, hint })
}
