//! A file at an address: its length, and the mark by which its states are told apart.

use ureq::http::HeaderMap;

use super::choice::{self, Choice, RemoteFile};
use super::client::{Answer, Client, Part, text};
use super::error::HubError;
use super::hash::is_sha256;
use super::huggingface::{Resolved, is_file, refuse};
use super::name::without_query;

/// Asks for the first byte of the file, and of all files that belong to it where it is split.
///
/// # Errors
/// The file does not exist, or its server does not tell its length.
pub fn resolve(client: &Client, address: &str) -> Result<Resolved, HubError> {
    let bare = without_query(address);
    let query = &address[bare.len()..];
    let (folder, file) = bare.rsplit_once('/').unwrap_or(("", bare));
    let (stem, no, count) = choice::split_of(file);
    if no != 1 {
        let why = format!("it is file {no} of {count}: give the address of the first one");
        return Err(HubError::Name { name: bare.to_string(), why });
    }
    let names: Vec<String> = match count {
        1 => vec![file.to_string()],
        count => (1..=count).map(|no| format!("{stem}-{no:05}-of-{count:05}.gguf")).collect(),
    };
    let urls: Vec<String> = names.iter().map(|name| format!("{folder}/{name}{query}")).collect();
    let files = names.iter().zip(&urls).map(|(name, url)| asked(client, name, url));
    let choice = Choice { quant: choice::label(stem), files: files.collect::<Result<_, _>>()? };
    Ok(Resolved { commit: String::new(), licence: None, choice, urls })
}

fn asked(client: &Client, name: &str, url: &str) -> Result<RemoteFile, HubError> {
    let mut answer = client.get(url, Part { from: 0, until: Some(1), etag: None })?;
    let host = url.split('/').take(3).collect::<Vec<_>>().join("/");
    if !is_file(&answer) {
        refuse(&mut answer, &host, name)?;
    }
    refuse_page(&answer)?;
    let size = whole_size(&answer).ok_or_else(|| HubError::Malformed {
        url: answer.url.clone(),
        what: "file",
        why: "its server does not say how long it is".to_string(),
    })?;
    let etag = text(&answer.head, "etag").map(str::to_string);
    Ok(RemoteFile { path: name.to_string(), size, sha256: sha256_of(&answer.first), etag })
}

/// A page for people is an error that came with the status of a file.
///
/// # Errors
/// The answer is such a page.
pub fn refuse_page(answer: &Answer) -> Result<(), HubError> {
    if text(&answer.head, "content-type").is_some_and(|ty| ty.starts_with("text/html")) {
        Err(HubError::NotGguf {
            url: answer.url.clone(),
            what: "a web page (HTML)".to_string(),
            hint: "is it the address of the file itself, and does a proxy or the site ask for a login?".to_string(),
        })
    } else {
        Ok(())
    }
}

/// Bytes of the whole file, whichever part of it came.
pub fn whole_size(answer: &Answer) -> Option<u64> {
    match answer.status {
        206 => content_range(&answer.head)?.1,
        _ => answer.body.content_length(),
    }
}

/// The beginning of a part, and the length of the whole file.
pub fn content_range(head: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let (range, whole) = text(head, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (from, _) = range.split_once('-')?;
    Some((from.trim().parse().ok()?, whole.trim().parse().ok()))
}

/// The hash of the file, where the hub names it so: the ETag of large files is their SHA-256.
pub fn sha256_of(first: &HeaderMap) -> Option<String> {
    let etag = text(first, "x-linked-etag").or_else(|| text(first, "etag"))?;
    let bare = etag.trim_start_matches("W/").trim_matches('"');
    is_sha256(bare).then(|| bare.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn parts_say_where_they_begin() {
        let range = |value: &'static str| {
            content_range(&HeaderMap::from_iter([(
                "content-range".parse().unwrap(),
                value.parse().unwrap(),
            )]))
        };
        assert_eq!(range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(range("bytes 5-9/*"), Some((5, None)));
        assert_eq!((range("bytes */10"), range("lines 1-2/3")), (None, None));
    }
}
