//! Sends a worker that cannot reach a model's source what it lacks. Those tensors are fetched into a folder of this machine,
//! sent, and deleted: one worker's layers at a time, and nothing of the others'.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use blake3::Hash;
use brigade_gguf::TensorInfo;
use brigade_hub::HubError;
use brigade_hub::remote::Remote;
use brigade_proto::failure::Failure;
use brigade_proto::limits::MAX_SPANS;
use brigade_worker::cache::Cache;
use brigade_worker::fetch::{Fetch, Step};
use brigade_worker::host;
use brigade_worker::pool::{Pool, PoolError};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::fetch::{Order, request};
use crate::progress::{Part, Phase, Progress};
use brigade_line::model::Model;

/// Workers whose layers are on their way through this machine at a time: so much of its disk is taken.
const RELAYS_AT_ONCE: usize = 1;

static TURNS: Semaphore = Semaphore::const_new(RELAYS_AT_ONCE);

/// Why nothing can be sent on.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The source, or this machine's disk.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// What fetching says.
    #[error("{0}")]
    Fetch(Failure),
    /// The system refuses threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Tensors that are on their way through this machine.
#[derive(Debug)]
pub struct Relayed {
    /// Where they are.
    pub cache: Cache,
    hashes: Vec<Hash>,
    _turn: SemaphorePermit<'static>,
}

impl Drop for Relayed {
    fn drop(&mut self) {
        for hash in &self.hashes {
            if let Err(error) = self.cache.forget(hash) {
                tracing::warn!(%error, "what was sent on is still there: brigade prune deletes it");
            }
        }
    }
}

/// Fetches these tensors of a remote model, to be sent on; their hashes are remembered.
///
/// # Errors
/// [`RelayError`]; what has come stays for the next call.
pub async fn relay(
    model: &Arc<Model>,
    remote: &Arc<Remote>,
    order: &Order,
    tensors: &[&TensorInfo],
    progress: &Progress,
) -> Result<Relayed, RelayError> {
    // Nobody closes it.
    let turn = TURNS.acquire().await.expect("it is never closed");
    let names: Vec<String> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let part = progress.part(Phase::Sending, tensors.iter().map(|tensor| tensor.nbytes).sum());
    let (model, remote, order) = (model.clone(), remote.clone(), order.clone());
    let work = move || fetched(&model, &remote, &order, &names, &part);
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    done.map(|(cache, hashes)| Relayed { cache, hashes, _turn: turn })
}

fn fetched(
    model: &Model,
    remote: &Arc<Remote>,
    order: &Order,
    names: &[String],
    part: &Part,
) -> Result<(Cache, Vec<Hash>), RelayError> {
    let mut by_file = BTreeMap::<usize, Vec<&TensorInfo>>::new();
    for tensor in names.iter().filter_map(|name| model.gguf.require(name).ok()) {
        by_file.entry(tensor.shard).or_default().push(tensor);
    }
    let needed = by_file.values().flatten().map(|tensor| tensor.nbytes).sum();
    let folder = remote.relay(needed)?;
    let cache = Cache::open(&folder, u64::MAX, Pool::new(host::cores(), &[])?);
    let (mut hashes, mut before) = (Vec::new(), 0);
    for (file, mut tensors) in by_file {
        tensors.sort_by_key(|tensor| tensor.offset);
        for batch in tensors.chunks(MAX_SPANS) {
            let (client, at) = remote.file(file)?;
            let request = request(remote, file, at, remote.named_hosts()?, batch, order);
            let fetch = Fetch::parse(request).map_err(RelayError::Fetch)?;
            let found = Mutex::new(Vec::new());
            let step = |step: Step| {
                match step {
                    Step::Bytes(done) => part.at(before + done),
                    Step::Done(i, hash) => {
                        found.lock().unwrap_or_else(PoisonError::into_inner).push((i, hash));
                    }
                }
                true
            };
            let ran = fetch.run_with(&client, &cache, &step);
            let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
            hashes.extend(found.iter().map(|(_, hash)| *hash));
            let named = found.iter().filter_map(|(i, hash)| {
                Some((batch.get(*i)?.name.clone(), hash.to_hex().to_string()))
            });
            remote.record(&named.collect::<Vec<_>>())?;
            ran.map_err(RelayError::Fetch)?;
            before += batch.iter().map(|tensor| tensor.nbytes).sum::<u64>();
        }
    }
    Ok((cache, hashes))
}
