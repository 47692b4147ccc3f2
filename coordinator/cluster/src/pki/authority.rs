//! The authority's key and certificate in their files: made once, and never silently made again.

use std::path::Path;

use brigade_proto::tls::files::{self, Lock};
use brigade_proto::tls::{Authority, NodeKey, TlsError, unix_now};
use thiserror::Error;

use super::folder::Folder;
use super::roster::{FILE as NODES_FILE, Roster};

pub(super) const KEY_FILE: &str = "ca.key";
const CERTIFICATE_FILE: &str = "ca.pem";

/// Why there is no authority, or nothing that was asked of it.
#[derive(Debug, Error)]
pub enum PkiError {
    /// Files, keys or certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// One half of the authority is gone.
    #[error(
        "{folder} has lost a part of the cluster's authority (ca.key, ca.pem): restore it from a backup, or begin a \
         new one with `brigade serve --new-ca`; these must be joined anew then: {nodes}"
    )]
    Lost {
        /// The folder of the cluster's files.
        folder: String,
        /// Names of the nodes that would have to join again.
        nodes: String,
    },
    /// No node has this name, address or key.
    #[error(
        "no node is called \"{which}\", is at that address or has a key that begins like that: `brigade nodes` lists them"
    )]
    NoSuchNode {
        /// The name, address or key that was given.
        which: String,
    },
    /// A stage of a node has no key for long.
    #[error(
        "{which} is a stage of the node {node}, which vouches for it: revoke the node, with all its stages"
    )]
    OneStage {
        /// The stage's name.
        which: String,
        /// Its node's.
        node: String,
    },
    /// The list of revocations is full.
    #[error(
        "{most} nodes are revoked whose certificates have not ended: wait until some have, or begin a new authority \
         with `brigade serve --new-ca`"
    )]
    TooManyRevoked {
        /// How many may be.
        most: usize,
    },
}

/// The authority of a folder; the first time it is made.
///
/// # Errors
/// [`PkiError::Lost`] where one of its files, or the roster's companion, is gone.
pub fn open(folder: &Folder) -> Result<Authority, PkiError> {
    let lock = folder.lock()?;
    let (key_path, path) = (folder.file(KEY_FILE), folder.file(CERTIFICATE_FILE));
    let (key, certificate) = (files::read(&key_path)?, files::read(&path)?);
    let what = path.display().to_string();
    match (key, certificate) {
        (Some(key), Some(certificate)) => {
            let key = NodeKey::from_pem(&key_path.display().to_string(), &key)?;
            Ok(Authority::load(key, &what, &certificate)?)
        }
        (None, None) if !folder.file(NODES_FILE).exists() => make(folder, &lock),
        _ => {
            let roster = Roster::read(folder, unix_now())?;
            let folder = folder.path().display().to_string();
            Err(PkiError::Lost { folder, nodes: names(&roster) })
        }
    }
}

/// Whether a folder has an authority, or a part of one.
pub fn has_authority(folder: &Folder) -> bool {
    [KEY_FILE, CERTIFICATE_FILE].iter().any(|name| folder.file(name).exists())
}

/// Puts what a folder has aside and makes a new authority there; the nodes that must be joined anew, and where the
/// old files are now.
///
/// # Errors
/// Files cannot be moved or written.
pub fn new_authority(data_dir: &Path) -> Result<(String, std::path::PathBuf), PkiError> {
    let folder = Folder::within(data_dir);
    let roster = Roster::read(&folder, unix_now())?;
    let aside = folder.path().with_file_name(format!("cluster.until-{}", unix_now()));
    if folder.path().exists() {
        let failed = |source| TlsError::File { path: folder.path().to_owned(), source };
        std::fs::rename(folder.path(), &aside).map_err(failed)?;
    }
    let lock = folder.lock()?;
    make(&folder, &lock)?;
    Ok((names(&roster), aside))
}

fn make(folder: &Folder, _: &Lock) -> Result<Authority, PkiError> {
    let (key, certificate) = Authority::create(unix_now())?;
    files::write(&folder.file(KEY_FILE), &key.to_pem())?;
    files::write(&folder.file(CERTIFICATE_FILE), &certificate)?;
    let authority = Authority::load(key, CERTIFICATE_FILE, &certificate)?;
    tracing::info!(folder = %folder.path().display(), key = %authority.id(), "made the cluster's authority");
    Ok(authority)
}

fn names(roster: &Roster) -> String {
    let names: Vec<&str> = roster.nodes().iter().map(|node| node.name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
