//! A sequence's state in a file: `brigade run` saves it at its end, and a later run begins with it.
//!
//! The file is a snapshot over all layers (`brigade_engine::state`), so that a run with other cuts may begin
//! with it. It fits one model and one type of the KV cache.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use brigade_engine::state::SnapshotReader;
use brigade_line::handle::RequestId;

use crate::cli::running::session::Session;

/// Sequences that a run with such a file keeps: the one put back, the prompt's end where a model has
/// recurrent states, and the end.
pub const KEEP: u32 = 3;

/// Puts the state of a file into the line, for a request with this prompt.
///
/// # Errors
/// The file cannot be read or is no state of this model, or the prompt does not begin with its tokens.
pub async fn load(session: &Session, path: &Path, prompt: &[u32]) -> Result<()> {
    let cannot = || format!("--state-in {}", path.display());
    let owned = path.to_path_buf();
    let read = tokio::task::spawn_blocking(move || -> Result<_> {
        let bytes = std::fs::read(owned)?;
        let tokens = SnapshotReader::open(&bytes)?.history;
        Ok((bytes, tokens))
    });
    let (bytes, tokens) = read.await?.with_context(cannot)?;
    if tokens.is_empty() {
        bail!("{}: it has no tokens", cannot());
    }
    let common = tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    if common < tokens.len() || prompt.len() == common {
        bail!(
            "{}: its {} tokens must be the beginning of the prompt and be followed by more; the two \
             have {common} in common, of a prompt of {}",
            cannot(),
            tokens.len(),
            prompt.len()
        );
    }
    session.engine.load_state(tokens, bytes).await.with_context(cannot)
}

/// Writes the state of a request that has ended; a file of that name is replaced when all is there.
///
/// # Errors
/// The state is not there, or the file cannot be written.
pub async fn save(session: &Session, request: RequestId, path: &Path) -> Result<()> {
    let cannot = || format!("--state-out {}", path.display());
    let bytes = session.engine.save_state(request).await.with_context(cannot)?;
    let owned = path.to_path_buf();
    let written = tokio::task::spawn_blocking(move || -> Result<()> {
        let mut part = owned.clone().into_os_string();
        part.push(".part");
        let mut file = std::fs::File::create(&part)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        Ok(std::fs::rename(&part, &owned)?)
    });
    written.await?.with_context(cannot)
}
