//! Hugging Face's API: the commit of a repository, its files with sizes and hashes, its licence.

use serde::Deserialize;
use ureq::http::StatusCode;

use super::choice::{self, Choice, RemoteFile};
use super::client::{Answer, Client, Part, text};
use super::error::HubError;
use super::hash::is_sha256;
use super::name::{HubName, check_word};

/// Most bytes of the description of a repository.
const MAX_INFO_BYTES: u64 = 32 << 20;

/// Most files of a repository.
const MAX_FILES: usize = 100_000;

/// Digits of a commit.
const COMMIT_DIGITS: usize = 40;

/// A name resolved to files of one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The repository's commit, a manifest's hash, or empty where the source has none.
    pub commit: String,
    /// The licence by the repository's card.
    pub licence: Option<String>,
    /// The quantisation, and its files.
    pub choice: Choice,
    /// Where each of them is.
    pub urls: Vec<String>,
}

/// A part of what `/api/models/USER/REPO/revision/main?blobs=true` answers.
#[derive(Debug, Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
    #[serde(default, rename = "cardData")]
    card: Option<Card>,
}

#[derive(Debug, Deserialize)]
struct Card {
    #[serde(default)]
    license: Option<serde_json::Value>,
    #[serde(default)]
    license_name: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    #[serde(rename = "rfilename")]
    path: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    #[serde(default)]
    sha256: Option<String>,
    #[serde(default)]
    size: Option<u64>,
}

/// Asks the hub what `name` is now.
///
/// # Errors
/// There is no such repository or quantisation, it is gated, or the hub does not answer.
pub fn resolve(client: &Client, endpoint: &str, name: &HubName) -> Result<Resolved, HubError> {
    let repo = &name.repo;
    let url = format!("{endpoint}/api/models/{}/revision/main?blobs=true", encoded(repo));
    let mut answer = client.get(&url, Part::default())?;
    refuse(&mut answer, endpoint, repo)?;
    let is_page = text(&answer.head, "content-type").is_some_and(|ty| ty.starts_with("text/html"));
    if is_page {
        let why =
            "it is a web page; is HF_ENDPOINT a hub, and does a proxy ask for a login?".to_string();
        return Err(malformed(&answer.url, why));
    }
    let body = answer.text(MAX_INFO_BYTES)?;
    described(&body, &answer.url, endpoint, name)
}

/// Resolves `name` by a repository's description, which came from `url`. It came from `url`.
///
/// # Errors
/// The description is invalid, or there is no such quantisation.
pub fn described(
    body: &str,
    url: &str,
    endpoint: &str,
    name: &HubName,
) -> Result<Resolved, HubError> {
    let malformed = |why: String| malformed(url, why);
    let info: Info = serde_json::from_str(body).map_err(|error| malformed(error.to_string()))?;
    if info.sha.len() != COMMIT_DIGITS || !info.sha.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(malformed("sha is not a commit of 40 hex digits".to_string()));
    }
    if info.siblings.len() > MAX_FILES {
        return Err(malformed(format!("it has more than {MAX_FILES} files")));
    }
    let files: Vec<RemoteFile> = info.siblings.into_iter().filter_map(remote).collect();
    let choice = choice::choose(name, &files)?;
    let to_url = |file: &RemoteFile| {
        format!("{endpoint}/{}/resolve/{}/{}", encoded(&name.repo), info.sha, encoded(&file.path))
    };
    let urls = choice.files.iter().map(to_url).collect();
    let licence = info.card.and_then(licence);
    Ok(Resolved { commit: info.sha, licence, choice, urls })
}

fn malformed(url: &str, why: String) -> HubError {
    HubError::Malformed { url: url.to_string(), what: "description of a repository", why }
}

/// A file with a size and a path inside of the repository; `None` for other entries.
fn remote(sibling: Sibling) -> Option<RemoteFile> {
    let lfs = sibling.lfs.as_ref();
    let size = lfs.and_then(|lfs| lfs.size).or(sibling.size)?;
    let sha256 = lfs.and_then(|lfs| lfs.sha256.clone()).map(|hash| hash.to_ascii_lowercase());
    let is_plain = sibling.path.split('/').all(|word| check_word(word).is_ok());
    is_plain.then(|| RemoteFile {
        path: sibling.path,
        size,
        sha256: sha256.filter(|hash| is_sha256(hash)),
        etag: None,
    })
}

fn licence(card: Card) -> Option<String> {
    let said = match card.license? {
        serde_json::Value::String(one) => one,
        serde_json::Value::Array(several) => {
            several.iter().filter_map(|v| v.as_str()).collect::<Vec<_>>().join(", ")
        }
        _ => return None,
    };
    // A licence of the owner's own has a name beside it.
    Some(card.license_name.filter(|_| said == "other").unwrap_or(said))
}

/// Turns a status other than 200 and 206 into an error.
///
/// # Errors
/// The status is another one.
pub fn refuse(answer: &mut Answer, endpoint: &str, repo: &str) -> Result<(), HubError> {
    let host = endpoint.split("://").nth(1).unwrap_or(endpoint).to_string();
    let code = text(&answer.head, "x-error-code").or(text(&answer.first, "x-error-code"));
    let (what, repo) = (repo.to_string(), repo.to_string());
    Err(match (answer.status, code) {
        (200 | 206, _) => return Ok(()),
        (401 | 403, Some("GatedRepo")) => {
            let page = format!("{endpoint}/{repo}");
            HubError::Gated { repo, page }
        }
        (401 | 404, Some("RepoNotFound")) | (404, None) => HubError::NoRepo { what, host },
        (401, _) => {
            let said = answer.said();
            if said.contains("Invalid credentials") || said.contains("expired") {
                HubError::Token { host }
            } else {
                HubError::NoRepo { what, host }
            }
        }
        (status, _) => HubError::Status { url: answer.url.clone(), status, text: answer.said() },
    })
}

/// Whether the answer is the file, whole or in part.
pub fn is_file(answer: &Answer) -> bool {
    answer.is(StatusCode::OK) || answer.is(StatusCode::PARTIAL_CONTENT)
}

/// A path in an address.
fn encoded(path: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    path.bytes().map(one).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_read_as_the_hub_writes_them() {
        let text = r#"{"id":"u/r","sha":"0123456789012345678901234567890123456789","gated":false,"siblings":[
            {"rfilename":"README.md","size":10,"blobId":"aa"},
            {"rfilename":"../evil.gguf","size":10,"lfs":{"sha256":"00","size":10,"pointerSize":134}},
            {"rfilename":"a b.gguf","size":9,"lfs":{"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":9}}],
            "cardData":{"license":"other","license_name":"own-1.0"},"unknown":[1]}"#;
        let info: Info = serde_json::from_str(text).unwrap();
        assert_eq!(info.card.and_then(licence).as_deref(), Some("own-1.0"));
        let files: Vec<_> = info.siblings.into_iter().filter_map(remote).collect();
        let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["README.md", "a b.gguf"]);
        assert!(files[0].sha256.is_none() && files[1].sha256.is_some());
        assert_eq!(encoded("a b/c+d.gguf"), "a%20b/c%2Bd.gguf");
    }
}
