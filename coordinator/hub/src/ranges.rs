//! Reads ranges of a file at an address. All answers must be of the same state of the file.

use std::io::Read;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use super::address::{content_range, refuse_page};
use super::client::{Client, Part, text};
use super::error::HubError;
use super::name::without_query;

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Connections in a row that may break without a byte.
const MAX_IN_VAIN: u32 = 5;

/// The pause after one that broke.
const PAUSE: Duration = Duration::from_millis(200);

/// A file at an address, in the state that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAt {
    /// The file's address; it may be signed.
    pub url: String,
    /// Bytes of all of it.
    pub size: u64,
    /// The server's ETag for this state, if it has one.
    pub etag: Option<String>,
}

/// Reads `range` of the file, in order, into `sink`. Where the connection breaks it goes on there.
///
/// # Errors
/// Another file or state of it is there now, its server knows no ranges, or the connection breaks again and again; and what
/// `sink` says.
pub fn read<E: From<HubError>>(
    client: &Client,
    file: &FileAt,
    range: Range<u64>,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let url = || without_query(&file.url).to_string();
    let (mut at, mut in_vain) = (range.start, 0);
    while at < range.end {
        let before = at;
        let part = Part { from: at, until: Some(range.end), etag: file.etag.as_deref() };
        let answer = client.get(&file.url, part)?;
        refuse_page(&answer)?;
        check(&answer, file, at)?;
        let mut reader =
            answer.body.into_with_config().limit(u64::MAX).reader().take(range.end - at);
        let mut piece = vec![0; PIECE];
        let why = loop {
            match reader.read(&mut piece) {
                Ok(0) => break "it ended early".to_string(),
                Ok(n) => {
                    sink(&piece[..n])?;
                    at += n as u64;
                }
                Err(error) => break error.to_string(),
            }
            if at == range.end {
                return Ok(());
            }
        };
        in_vain = if at > before { 0 } else { in_vain + 1 };
        if in_vain == MAX_IN_VAIN {
            return Err(HubError::Broken { url: url(), why }.into());
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Checks that an answer is the requested range of the expected file.
fn check(answer: &super::client::Answer, file: &FileAt, at: u64) -> Result<(), HubError> {
    let url = answer.url.clone();
    let changed = |what: String| HubError::Changed { url: url.clone(), what };
    match answer.status {
        206 => {}
        200 if file.etag.is_some() => {
            return Err(changed(
                "the server sends the whole file where a part was asked for".to_string(),
            ));
        }
        200 => {
            return Err(HubError::Broken {
                url,
                why: "its server does not send parts of files (range requests)".to_string(),
            });
        }
        status => {
            let text = "the address may have ended".to_string();
            return Err(HubError::Status { url, status, text });
        }
    }
    match content_range(&answer.head) {
        Some((from, Some(size))) if from == at && size == file.size => {}
        other => {
            return Err(changed(format!(
                "its part and length are {other:?}, not {at} of {}",
                file.size
            )));
        }
    }
    let etag = text(&answer.head, "etag");
    match &file.etag {
        Some(wanted) if etag != Some(wanted) => {
            Err(changed("its server names another version of the file (ETag)".to_string()))
        }
        _ => Ok(()),
    }
}
