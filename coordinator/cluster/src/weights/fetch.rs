//! Has a worker fetch its tensors from where the model came from, by range, and learns their hashes from it. The token stays
//! here: workers get addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use brigade_gguf::TensorInfo;
use brigade_hub::HubError;
use brigade_hub::ranges::FileAt;
use brigade_hub::remote::Remote;
use brigade_line::model::Model;
use brigade_proto::control::{FetchRequest, PrepareRequest, Span, TensorRef, fetch_event};
use brigade_proto::limits::{MAX_PRIVATE_HOSTS, MAX_SPANS};
use brigade_proto::task::joined;

use crate::members::conn::{Conn, WorkerError};
use crate::progress::{Part, Phase, Progress};

/// Why a worker did not fetch.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The source fails for the coordinator too, so no worker can fetch from it.
    #[error("{0}")]
    Source(String),
    /// The worker failed, or reports that its source did.
    #[error("{0}")]
    Worker(#[from] WorkerError),
}

/// The line for which a worker fetches.
#[derive(Clone, Debug)]
pub struct Order {
    /// Epoch of the line.
    pub epoch: u64,
    /// The id of this coordinator.
    pub coordinator_id: String,
}

impl Order {
    /// The line of a prepare request.
    pub fn of(request: &PrepareRequest) -> Self {
        Self { epoch: request.epoch, coordinator_id: request.coordinator_id.clone() }
    }
}

/// Puts the hashes that are remembered into a manifest. Whether all of them are.
pub fn fill(remote: &Remote, tensors: &mut [TensorRef]) -> bool {
    let mut all = true;
    for tensor in tensors {
        let known = remote.hash(&tensor.name).and_then(|hash| blake3::Hash::from_hex(hash).ok());
        match (&mut tensor.blob, known) {
            (Some(blob), Some(hash)) => blob.blake3 = hash.as_bytes().to_vec().into(),
            _ => all = false,
        }
    }
    all
}

/// Has the worker fetch these tensors into its cache; their hashes are remembered.
///
/// # Errors
/// [`FetchError`]; what was fetched before stays in the worker's cache.
pub async fn fetch(
    model: &Arc<Model>,
    conn: &Conn,
    order: &Order,
    tensors: &[&TensorInfo],
    progress: &Progress,
) -> Result<(), FetchError> {
    let Some(remote) = &model.remote else { return Ok(()) };
    let mut by_file = BTreeMap::<usize, Vec<&TensorInfo>>::new();
    for tensor in tensors {
        by_file.entry(tensor.shard).or_default().push(tensor);
    }
    let part = progress.part(Phase::Sending, tensors.iter().map(|tensor| tensor.nbytes).sum());
    let mut done = 0;
    for (file, mut tensors) in by_file {
        tensors.sort_by_key(|tensor| tensor.offset);
        for batch in tensors.chunks(MAX_SPANS) {
            match once(remote, file, conn, order, batch, &part, done).await {
                // An address that was signed for a while may have ended.
                Err(FetchError::Worker(_)) => {
                    once(remote, file, conn, order, batch, &part, done).await?;
                }
                other => other?,
            }
            done += batch.iter().map(|tensor| tensor.nbytes).sum::<u64>();
            part.at(done);
        }
    }
    tracing::info!(worker = conn.name(), fetched_bytes = done, "weights fetched from their source");
    Ok(())
}

/// Fetches one batch, from an address that is requested for it.
async fn once(
    remote: &Arc<Remote>,
    file: usize,
    conn: &Conn,
    order: &Order,
    batch: &[&TensorInfo],
    part: &Part,
    before: u64,
) -> Result<(), FetchError> {
    let (at, hosts) = address(remote, file).await?;
    let mut found = Vec::new();
    let request = request(remote, file, at, hosts, batch, order);
    let called = call(conn, request, batch, part, before, &mut found).await;
    // Tensors that came before the failure are never fetched again.
    remote.record(&found).map_err(|error| FetchError::Source(error.to_string()))?;
    Ok(called?)
}

/// Asked anew for each batch: a signed address ends.
async fn address(remote: &Arc<Remote>, file: usize) -> Result<(FileAt, Vec<String>), FetchError> {
    let remote = remote.clone();
    let asked = move || Ok::<_, HubError>((remote.address(file)?, remote.named_hosts()?));
    let asked = joined(tokio::task::spawn_blocking(asked).await).await;
    asked.map_err(|error| FetchError::Source(error.to_string()))
}

/// The request for a worker, or for this process in its place.
pub fn request(
    remote: &Remote,
    file: usize,
    at: FileAt,
    hosts: Vec<String>,
    batch: &[&TensorInfo],
    order: &Order,
) -> FetchRequest {
    let span = |tensor: &&TensorInfo| Span { offset: tensor.offset, nbytes: tensor.nbytes };
    let byte = |i: usize, hex: &str| {
        u8::from_str_radix(hex.get(2 * i..2 * i + 2).unwrap_or("0"), 16).unwrap_or(0)
    };
    let sha256 = remote.sha256(file).unwrap_or_default();
    FetchRequest {
        epoch: order.epoch,
        coordinator_id: order.coordinator_id.clone(),
        address: at.url,
        file_bytes: at.size,
        etag: at.etag.unwrap_or_default(),
        file_sha256: (0..sha256.len() / 2).map(|i| byte(i, sha256)).collect(),
        spans: batch.iter().map(span).collect(),
        private_hosts: hosts.into_iter().take(MAX_PRIVATE_HOSTS).collect(),
    }
}

/// One call; `found`: names of tensors and their hashes, also of a call that breaks.
async fn call(
    conn: &Conn,
    request: FetchRequest,
    batch: &[&TensorInfo],
    part: &Part,
    before: u64,
    found: &mut Vec<(String, String)>,
) -> Result<(), WorkerError> {
    let mut control = conn.control();
    let call = async {
        let stream = control.fetch_tensors(request).await.map_err(|status| conn.error(&status))?;
        let mut stream = stream.into_inner();
        while let Some(event) = stream.message().await.map_err(|status| conn.error(&status))? {
            match event.event {
                Some(fetch_event::Event::Progress(progress)) => {
                    part.at(before + progress.done_bytes)
                }
                Some(fetch_event::Event::Fetched(fetched)) => {
                    let tensor = batch.get(fetched.span as usize);
                    let hash = blake3::Hash::from_slice(&fetched.blake3).ok();
                    found.extend(
                        tensor
                            .zip(hash)
                            .map(|(tensor, hash)| (tensor.name.clone(), hash.to_hex().to_string())),
                    );
                }
                None => {}
            }
        }
        Ok(())
    };
    conn.while_alive(call).await
}
