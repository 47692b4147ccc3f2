//! The hashes of a stage's tensors, by which a worker without the model file knows what it lacks. They are
//! computed once and remembered.

use std::ops::Range;
use std::sync::Arc;

use brigade_proto::task::joined;
use brigade_worker::config::default_cache_dir;
use brigade_worker::host;
use brigade_worker::machine::reading_threads::Pool;
use brigade_worker::weights::hashes::{HashError, HashStore};
use tokio_util::sync::CancellationToken;

use crate::progress::{Phase, Progress};
use brigade_line::model::Model;

/// The blake3 hashes of the stage's tensors in the order of [`brigade_spec::stage_tensors_with_drafts`]. They are
/// remembered between processes; missing ones are computed on all cores.
///
/// Dropping the future ends the hashing soon.
///
/// # Errors
/// The model's file cannot be read, or has changed since it was opened.
pub async fn of_stage(
    model: Arc<Model>,
    layers: Range<usize>,
    own_drafts: bool,
    progress: Progress,
) -> Result<Vec<blake3::Hash>, HashError> {
    let given_up = CancellationToken::new();
    let _until_dropped = given_up.clone().drop_guard();
    let work = move || {
        let (gguf, spec) = (&model.gguf, &model.spec);
        let tensors = brigade_spec::stage_tensors_with_drafts(gguf, spec, &layers, own_drafts);
        let part = progress.part(Phase::Hashing, tensors.iter().map(|t| t.nbytes).sum());
        let progress = |done_bytes, _| {
            if !given_up.is_cancelled() {
                part.at(done_bytes);
            }
        };
        let files = model.files()?;
        store()?.tensor_hashes(gguf, files, &tensors, &progress, &given_up)
    };
    joined(tokio::task::spawn_blocking(work).await).await
}

/// Where hashes are remembered; where there is no cache folder, for the time of the boot.
fn store() -> Result<HashStore, HashError> {
    let dir = default_cache_dir(&|name| std::env::var(name).ok());
    let dir = dir.unwrap_or_else(|_| std::env::temp_dir().join("brigade"));
    Ok(HashStore::new(&dir, Pool::new(host::cores(), &[])?))
}
