//! Errors about models by name. Every message says what to do.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a name leads to no model here.
#[derive(Debug, Error)]
pub enum HubError {
    /// The text is not a name of a model.
    #[error("{name:?} is not the name of a model: {why}")]
    Name {
        /// The given text.
        name: String,
        /// The problem, in words.
        why: String,
    },
    /// There is no such repository, or it is not for everybody.
    #[error(
        "{what} does not exist at {host}, or is private: check the spelling; for a private one set HF_TOKEN to a token \
         that may read it"
    )]
    NoRepo {
        /// The repository or model.
        what: String,
        /// The host that was asked.
        host: String,
    },
    /// The repository's owner wants something to be accepted first.
    #[error(
        "{repo} is gated: open {page} in a browser, accept its terms there, and set HF_TOKEN to a token of that account \
         (https://huggingface.co/settings/tokens)"
    )]
    Gated {
        /// The repository's name.
        repo: String,
        /// The page with the terms to accept.
        page: String,
    },
    /// The token was not taken.
    #[error(
        "{host} does not take the token in HF_TOKEN: make a new one, or unset it for public models"
    )]
    Token {
        /// The host that was asked.
        host: String,
    },
    /// The repository has no such quantisation.
    #[error("{repo} has no {wanted}: {}", offered(.found))]
    NoQuant {
        /// The repository's name.
        repo: String,
        /// The quantisation that was asked for.
        wanted: String,
        /// Quantisations that the repository has.
        found: Vec<String>,
    },
    /// A split model of which files are missing at the source.
    #[error(
        "{repo}: {name} is split into {count} files, and {missing} is not there: its upload is not complete"
    )]
    Incomplete {
        /// The repository's name.
        repo: String,
        /// The name of the model.
        name: String,
        /// Files that make it.
        count: usize,
        /// The first one that is missing.
        missing: String,
    },
    /// No file of the model is here, and the network may not be used.
    #[error(
        "{name} is not on this machine, and --offline forbids to fetch it: run brigade pull {name} once without"
    )]
    Offline {
        /// The name of the model.
        name: String,
    },
    /// The server answers with another status than success.
    #[error("{url} answers with status {status}{}", said(.text))]
    Status {
        /// Address without its query.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The beginning of the answer's text.
        text: String,
    },
    /// Too many requests, and waiting did not help.
    #[error(
        "{url} wants fewer requests (status {status}) and {tries} tries did not help: try again in {wait_s} s, or with a token"
    )]
    Busy {
        /// Address without its query.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The number of requests made.
        tries: u32,
        /// The pause that the server asked for last, in seconds.
        wait_s: u64,
    },
    /// No connection, or one that breaks.
    #[error(
        "cannot fetch {url}: {why}; the part on disk is kept, and the same command continues from it"
    )]
    Broken {
        /// Address without its query.
        url: String,
        /// The error of the connection.
        why: String,
    },
    /// A redirect that must not be followed.
    #[error("{url} redirects to {to}: {why}")]
    Redirect {
        /// The redirecting address, without its query.
        url: String,
        /// The target's address, without its query.
        to: String,
        /// The reason for the refusal.
        why: String,
    },
    /// An address inside this network that the operator has not allowed.
    #[error(
        "{host} is at {address}, an address of this machine or network: models are fetched from such an address only if the operator names it (with HF_ENDPOINT, as the address itself, or with --private-host {host})"
    )]
    Private {
        /// The host's name.
        host: String,
        /// The address to which it resolves.
        address: String,
    },
    /// The answer is no model file.
    #[error("{url} is {what}, not a GGUF file: {hint}")]
    NotGguf {
        /// Address without its query.
        url: String,
        /// The kind of file that it is instead.
        what: String,
        /// A remedy.
        hint: String,
    },
    /// The source says one size and sends another.
    #[error("{url} has {got} bytes where {expected} were expected: {hint}")]
    Length {
        /// Address without its query.
        url: String,
        /// Bytes that came or were announced.
        got: String,
        /// Bytes of the lock or the listing.
        expected: u64,
        /// A remedy.
        hint: String,
    },
    /// Other bytes than the lock has.
    #[error(
        "{what} has the hash {got} where {expected} was expected: the source has changed or the transfer was damaged; it \
         was not kept. Run brigade pull for the name to fetch the file that is there now"
    )]
    Hash {
        /// The file or the address.
        what: String,
        /// SHA-256 of the received bytes.
        got: String,
        /// SHA-256 of the lock or the listing.
        expected: String,
    },
    /// The source has another file, or another state of it, than before.
    #[error(
        "{url} has changed since the model was resolved ({what}): brigade pull fetches the file that is there now"
    )]
    Changed {
        /// Address without its query.
        url: String,
        /// The sign of the change.
        what: String,
    },
    /// An answer that makes no sense.
    #[error("the answer of {url} is not a usable {what}: {why}")]
    Malformed {
        /// Address without its query.
        url: String,
        /// The expected kind of answer.
        what: &'static str,
        /// The parser's error.
        why: String,
    },
    /// The folder has no room for the file.
    #[error(
        "{folder} has {free} bytes free, {name} needs {needed} more: make room (brigade prune), or name another folder with --download-dir"
    )]
    NoRoom {
        /// The folder that is full.
        folder: PathBuf,
        /// The name of the model.
        name: String,
        /// Free bytes on its disk.
        free: u64,
        /// Bytes missing on disk.
        needed: u64,
    },
    /// It takes more than all models together that requests have fetched.
    #[error(
        "{name} has {size} bytes, and models that requests have fetched may take {budget} here: ask for a smaller \
         quantisation, or start the server with a larger --pull-budget"
    )]
    OverBudget {
        /// The name of the model.
        name: String,
        /// Bytes of its files.
        size: u64,
        /// Bytes of all such models.
        budget: u64,
    },
    /// The models that would have to go for it are in use.
    #[error(
        "{name} has {size} bytes, and of the {budget} that models may take which requests have fetched, {taken} are \
         taken by models in use and by downloads: try again later, or start the server with a larger --pull-budget"
    )]
    BudgetInUse {
        /// The name of the model.
        name: String,
        /// Bytes of its files.
        size: u64,
        /// Bytes of all such models.
        budget: u64,
        /// Bytes of those that cannot go.
        taken: u64,
    },
    /// Nobody waits for the download any more.
    #[error("the download of {name} was stopped; the part on disk is kept for the next one")]
    Stopped {
        /// The name of the model.
        name: String,
    },
    /// `models.lock` cannot be used.
    #[error("{path}: {why}")]
    Lock {
        /// Path of the lock file.
        path: PathBuf,
        /// The problem, and a remedy.
        why: String,
    },
    /// A process uses the model.
    #[error("{name} is in use: {by}")]
    InUse {
        /// The name of the model.
        name: String,
        /// The user of the model.
        by: String,
    },
    /// No model of that name was fetched here.
    #[error("{name} was not fetched by brigade: {hint}")]
    NotOurs {
        /// The name of the model.
        name: String,
        /// The names that there are.
        hint: String,
    },
    /// A model of the operator's folder that cannot be used.
    #[error("{name} in --models-dir {folder}: {why}; brigade models lists the models there")]
    Filed {
        /// The name of the model.
        name: String,
        /// The operator's folder.
        folder: PathBuf,
        /// The problem with it.
        why: String,
    },
    /// A file that must not be touched.
    #[error("{path} is not in brigade's own folder of models, and stays: {why}")]
    Outside {
        /// The file's path.
        path: PathBuf,
        /// The reason for the refusal.
        why: String,
    },
    /// The file system refuses.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// The action that failed, as a verb.
        what: &'static str,
        /// The path in question.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl HubError {
    /// Makes an error of a system call, for `map_err`.
    pub fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { what, path, source }
    }
}

fn offered(found: &[String]) -> String {
    match found {
        [] => "it has no GGUF files at all; look for a repository whose name ends with -GGUF"
            .to_string(),
        found => format!("it has {}", found.join(", ")),
    }
}

fn said(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.trim().is_empty() { String::new() } else { format!(": {}", line.trim()) }
}
