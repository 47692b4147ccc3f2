//! Has one worker accept its stage, and sees to it that it has the bytes: it finds them, fetches them, or is sent them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use brigade_gguf::TensorInfo;
use brigade_proto::control::{Blob, Feature, PrepareReply, PrepareRequest};
use brigade_worker::hashes::HashError;
use thiserror::Error;
use tokio::time::timeout;

use super::{fetch, hashes, push};
use crate::conn::{Conn, WorkerError};
use crate::facts;
use crate::placed_stage::PlacedStage;
use crate::progress::Progress;
use crate::reconcile::MemberId;
use brigade_line::model::Model;

/// How long a worker may take to accept a stage, its files apart.
const PREPARE_WITHIN: Duration = Duration::from_secs(5);

/// Bytes a second that a worker at least compares its own copy of a model at: a slow disk.
const SLOWEST_DISK: u64 = 50_000_000;

/// How often a worker is asked to fetch what it lacks: the second time, what was thrown out of its cache meanwhile.
const FETCHES: usize = 3;

/// What a worker is told to have ready.
#[derive(Clone, Debug)]
pub struct StageOrder {
    /// Its stage.
    pub stage: PlacedStage,
    /// What it is told.
    pub request: PrepareRequest,
    /// Whether it runs a stage of another line meanwhile.
    pub ahead: bool,
}

/// Why a stage was not prepared.
#[derive(Debug, Error)]
pub enum Refusal {
    /// Its worker.
    #[error("{1}")]
    Worker(MemberId, WorkerError),
    /// The model's file.
    #[error(transparent)]
    Hash(HashError),
}

/// Has a worker accept an order, and sends it the bytes that it lacks.
///
/// # Errors
/// [`Refusal`].
pub async fn prepare(
    model: Arc<Model>,
    order: StageOrder,
    progress: Progress,
) -> Result<(), Refusal> {
    let StageOrder { stage, mut request, ahead } = order;
    let failed = |error| Refusal::Worker(stage.member, error);
    let conn = &stage.conn;
    let mut reply = call_prepare(conn, &request, ahead, PREPARE_WITHIN).await.map_err(failed)?;
    if model.remote.is_some() && model.files().is_err() {
        reply = remotely(&model, &stage, &mut request, ahead, reply, &progress).await?;
    }
    if reply.needs_hashes {
        let hashed = hashes::of_stage(model.clone(), stage.layers.clone(), progress.clone());
        let hashes = hashed.await.map_err(Refusal::Hash)?;
        for (tensor, hash) in request.tensors.iter_mut().zip(&hashes) {
            if let Some(blob) = &mut tensor.blob {
                blob.blake3 = hash.as_bytes().to_vec().into();
            }
        }
        let bytes: u64 = request.tensors.iter().filter_map(|t| Some(t.blob.as_ref()?.nbytes)).sum();
        let within = PREPARE_WITHIN + Duration::from_secs(bytes / SLOWEST_DISK);
        reply = call_prepare(conn, &request, ahead, within).await.map_err(failed)?;
    }
    let job = push::Job {
        epoch: request.epoch,
        coordinator_id: request.coordinator_id,
        stage: request.spec.map_or(0, |s| s.stage),
        tensors: request.tensors,
        weight_bytes: reply.weight_bytes,
    };
    push::push(&model, conn, job, reply.missing, &progress).await.map_err(failed)
}

/// A stage of a model whose weights are not here: its worker fetches what it lacks. Where it cannot, the model is fetched here
/// after all, and the answer says that the worker waits for it.
async fn remotely(
    model: &Arc<Model>,
    stage: &PlacedStage,
    request: &mut PrepareRequest,
    ahead: bool,
    mut reply: PrepareReply,
    progress: &Progress,
) -> Result<PrepareReply, Refusal> {
    let Some(remote) = &model.remote else { return Ok(reply) };
    let failed = |error| Refusal::Worker(stage.member, error);
    let (conn, order) = (&stage.conn, fetch::Order::of(request));
    let bytes: u64 = request.tensors.iter().filter_map(|t| Some(t.blob.as_ref()?.nbytes)).sum();
    let within = PREPARE_WITHIN + Duration::from_secs(bytes / SLOWEST_DISK);
    for _ in 0..FETCHES {
        if fetch::fill(remote, &mut request.tensors) {
            reply = call_prepare(conn, request, ahead, within).await.map_err(failed)?;
        }
        let lacking = lacking(model, request, &reply);
        if lacking.is_empty() {
            return Ok(reply);
        }
        let fetched = match facts::knows(conn.capabilities(), Feature::Fetch) {
            true => fetch::fetch(model, conn, &order, &lacking, progress).await,
            false => Err(fetch::FetchError::Source("it is of a release that does not".to_string())),
        };
        if let Err(error) = fetched {
            tracing::warn!(
                worker = conn.name(),
                %error,
                "the worker cannot fetch its weights: the model is fetched here, and its layers are pushed"
            );
            break;
        }
    }
    let pulled = model.clone();
    let pulled = tokio::task::spawn_blocking(move || pulled.pull()).await;
    let pulled = pulled.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    pulled.map_err(|reason| {
        failed(WorkerError::Refused { worker: conn.name().to_string(), reason })
    })?;
    // Hashes of the files that are here now: those that were told by whoever could not fetch are none.
    Ok(PrepareReply { needs_hashes: true, ..reply })
}

/// Tensors of an order that have no hash yet, or whose bytes the worker lacks.
fn lacking<'m>(
    model: &'m Model,
    request: &PrepareRequest,
    reply: &PrepareReply,
) -> Vec<&'m TensorInfo> {
    let missing: BTreeSet<&[u8]> =
        reply.missing.iter().filter_map(|m| Some(&m.blob.as_ref()?.blake3[..])).collect();
    let lacks = |blob: &Blob| blob.blake3.is_empty() || missing.contains(&blob.blake3[..]);
    let named = request.tensors.iter().filter(|tensor| tensor.blob.as_ref().is_some_and(lacks));
    named.filter_map(|tensor| model.gguf.require(&tensor.name).ok()).collect()
}

async fn call_prepare(
    conn: &Conn,
    request: &PrepareRequest,
    ahead: bool,
    within: Duration,
) -> Result<PrepareReply, WorkerError> {
    let mut control = conn.control();
    let call = async {
        let reply = match ahead {
            true => control.prepare_ahead(request.clone()).await,
            false => control.prepare(request.clone()).await,
        };
        reply.map(tonic::Response::into_inner).map_err(|s| conn.error(&s))
    };
    timeout(within, conn.while_alive(call)).await.unwrap_or_else(|_| {
        let reason = format!("it did not accept its stage within {} s", within.as_secs());
        Err(WorkerError::Stalled { worker: conn.name().to_string(), reason })
    })
}
