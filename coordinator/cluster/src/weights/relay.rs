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
use brigade_proto::task::joined;
use brigade_worker::host;
use brigade_worker::loading::fetch::{Fetch, Step};
use brigade_worker::machine::reading_threads::{Pool, PoolError};
use brigade_worker::weights::cache::Cache;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::progress::{Part, Phase, Progress};
use crate::weights::fetch::{Order, request};
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
    /// Fetching failed.
    #[error(
        "this machine cannot fetch the worker's missing weights into its folder of models (--download-dir): {0}"
    )]
    Fetch(Failure),
    /// The system refuses threads.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Tensors that are on their way through this machine.
#[derive(Debug)]
pub struct Relayed {
    /// The cache that holds them.
    pub cache: Cache,
    hashes: Vec<Hash>,
    _turn: SemaphorePermit<'static>,
}

impl Drop for Relayed {
    fn drop(&mut self) {
        for hash in &self.hashes {
            if let Err(error) = self.cache.forget(hash) {
                tracing::warn!(%error, "a tensor that was sent on to a worker cannot be deleted from --download-dir: `brigade prune` deletes it");
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
    // The semaphore is never closed.
    let turn = TURNS.acquire().await.expect("it is never closed");
    let given_up = CancellationToken::new();
    // Dropping the future gives up: the thread ends with its next piece, and only then does the next relay begin.
    let _until_dropped = given_up.clone().drop_guard();
    let names: Vec<String> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let part = progress.part(Phase::Sending, tensors.iter().map(|tensor| tensor.nbytes).sum());
    let (model, remote, order) = (model.clone(), remote.clone(), order.clone());
    let work = move || {
        let passing = Passing { remote: &remote, order: &order, part: &part, given_up: &given_up };
        let (cache, hashes) = passing.all(&model, &names)?;
        Ok(Relayed { cache, hashes, _turn: turn })
    };
    joined(tokio::task::spawn_blocking(work).await).await
}

/// State of fetching tensors that are to be sent on.
struct Passing<'a> {
    remote: &'a Remote,
    order: &'a Order,
    part: &'a Part,
    given_up: &'a CancellationToken,
}

impl Passing<'_> {
    /// Fetches the tensors of these names; where they are, and their hashes.
    fn all(&self, model: &Model, names: &[String]) -> Result<(Cache, Vec<Hash>), RelayError> {
        let mut by_file = BTreeMap::<usize, Vec<&TensorInfo>>::new();
        for tensor in names.iter().filter_map(|name| model.gguf.require(name).ok()) {
            by_file.entry(tensor.shard).or_default().push(tensor);
        }
        let needed = by_file.values().flatten().map(|tensor| tensor.nbytes).sum();
        let folder = self.remote.relay(needed)?;
        let cache = Cache::open(&folder, u64::MAX, Pool::new(host::cores(), &[])?);
        let (mut hashes, mut before) = (Vec::new(), 0);
        for (file, mut tensors) in by_file {
            tensors.sort_by_key(|tensor| tensor.offset);
            for batch in tensors.chunks(MAX_SPANS) {
                hashes.extend(self.batch(file, batch, before, &cache)?);
                before += batch.iter().map(|tensor| tensor.nbytes).sum::<u64>();
            }
        }
        Ok((cache, hashes))
    }

    /// Fetches tensors of one file; their hashes. `before`: bytes that came before them.
    fn batch(
        &self,
        file: usize,
        batch: &[&TensorInfo],
        before: u64,
        cache: &Cache,
    ) -> Result<Vec<Hash>, RelayError> {
        let (client, at) = self.remote.file(file)?;
        let hosts = self.remote.named_hosts()?;
        let request = request(self.remote, file, at, hosts, batch, self.order);
        let fetch = Fetch::parse(request).map_err(RelayError::Fetch)?;
        let found = Mutex::new(Vec::new());
        let step = |step: Step| {
            match step {
                Step::Bytes(done) => self.part.at(before + done),
                Step::Done(i, hash) => {
                    found.lock().unwrap_or_else(PoisonError::into_inner).push((i, hash));
                }
            }
            !self.given_up.is_cancelled()
        };
        let ran = fetch.run_with(&client, cache, &step);
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let named = found
            .iter()
            .filter_map(|(i, hash)| Some((batch.get(*i)?.name.clone(), hash.to_hex().to_string())));
        if let Err(error) = self.remote.record(&named.collect::<Vec<_>>()) {
            // The bytes differ from those that were seen first, so no worker is sent them.
            let forgotten = found.iter().try_for_each(|(_, hash)| cache.forget(hash));
            forgotten.unwrap_or_else(|error| tracing::warn!(%error, "tensors that differ from their source cannot be deleted from --download-dir: `brigade prune` deletes them"));
            return Err(error.into());
        }
        ran.map_err(RelayError::Fetch)?;
        Ok(found.into_iter().map(|(_, hash)| hash).collect())
    }
}
