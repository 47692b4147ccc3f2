//! Has one worker accept its stage, and sees to it that it has the bytes: it finds them, fetches them, or is sent them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use brigade_gguf::TensorInfo;
use brigade_hub::remote::Remote;
use brigade_proto::control::{Blob, Feature, Holder, PrepareReply, PrepareRequest};
use brigade_worker::weights::hashes::HashError;
use thiserror::Error;
use tokio::time::timeout;

use crate::members::conn::{Conn, WorkerError};
use crate::members::facts;
use crate::members::placed_stage::PlacedStage;
use crate::progress::Progress;
use crate::reconcile::MemberId;
use crate::weights::fetch;
use crate::weights::gather;
use crate::weights::hashes;
use crate::weights::push;
use crate::weights::relay::{self, Relayed};
use brigade_line::model::Model;

/// How long a worker may take to accept a stage, its files apart.
const PREPARE_WITHIN: Duration = Duration::from_secs(5);

/// Bytes a second that a worker at least compares its own copy of a model at: a slow disk.
const SLOWEST_DISK: u64 = 50_000_000;

/// How often a worker is asked to fetch missing tensors. The second time it fetches those that were evicted from its
/// cache since.
const FETCHES: usize = 3;

/// A worker's stage, and the request to prepare it.
#[derive(Clone, Debug)]
pub struct StageOrder {
    /// The stage and its worker.
    pub stage: PlacedStage,
    /// The request that the worker gets.
    pub request: PrepareRequest,
    /// Whether the worker runs a stage of another line at the same time.
    pub ahead: bool,
    /// Other workers, which may have what it lacks.
    pub holders: Vec<Holder>,
}

/// Why a stage was not prepared.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The worker refused or is gone.
    #[error("{1}")]
    Worker(MemberId, WorkerError),
    /// The model's file could not be hashed.
    #[error(transparent)]
    Hash(HashError),
}

/// Has a worker accept an order, and sees to it that it has the bytes.
///
/// # Errors
/// [`Refusal`].
pub async fn prepare(
    model: Arc<Model>,
    order: StageOrder,
    progress: Progress,
) -> Result<(), Refusal> {
    let StageOrder { stage, mut request, ahead, holders } = order;
    let failed = |error| Refusal::Worker(stage.member, error);
    let conn = &stage.conn;
    let mut reply = call_prepare(conn, &request, ahead, PREPARE_WITHIN).await.map_err(failed)?;
    let mut relayed = None;
    if let Some(remote) = &model.remote {
        let remote = Source { model: &model, remote, stage: &stage, ahead, progress: &progress };
        (reply, relayed) = remote.brought(&mut request, reply, &holders).await?;
    } else if reply.needs_hashes {
        let own_drafts = request.spec.as_ref().is_some_and(|spec| spec.own_drafts);
        let layers = stage.layers.clone();
        let hashed = hashes::of_stage(model.clone(), layers, own_drafts, progress.clone());
        let hashes = hashed.await.map_err(Refusal::Hash)?;
        for (tensor, hash) in request.tensors.iter_mut().zip(&hashes) {
            if let Some(blob) = &mut tensor.blob {
                blob.blake3 = hash.as_bytes().to_vec().into();
            }
        }
        let within = looks_within(&request);
        reply = call_prepare(conn, &request, ahead, within).await.map_err(failed)?;
    }
    let job = push::Job {
        epoch: request.epoch,
        coordinator_id: request.coordinator_id,
        stage: request.spec.map_or(0, |s| s.stage),
        tensors: request.tensors,
        weight_bytes: reply.weight_bytes,
        relayed: relayed.as_ref().map(|relayed: &Relayed| relayed.cache.clone()),
    };
    push::push(&model, conn, job, reply.missing, &progress).await.map_err(failed)
}

/// How long a worker may take that looks through what it has.
fn looks_within(request: &PrepareRequest) -> Duration {
    let bytes: u64 = request.tensors.iter().filter_map(|t| Some(t.blob.as_ref()?.nbytes)).sum();
    PREPARE_WITHIN + Duration::from_secs(bytes / SLOWEST_DISK)
}

/// A stage of a model whose weights are not here.
struct Source<'a> {
    model: &'a Arc<Model>,
    remote: &'a Arc<Remote>,
    stage: &'a PlacedStage,
    ahead: bool,
    progress: &'a Progress,
}

impl Source<'_> {
    /// Has the worker get its missing tensors from other workers, or from the model's source. Only the tensors that
    /// it cannot fetch are fetched here, to be sent.
    async fn brought(
        &self,
        request: &mut PrepareRequest,
        mut reply: PrepareReply,
        holders: &[Holder],
    ) -> Result<(PrepareReply, Option<Relayed>), Refusal> {
        let Self { model, remote, stage, progress, .. } = *self;
        let failed = |error| Refusal::Worker(stage.member, error);
        let (conn, order) = (&stage.conn, fetch::Order::of(request));
        let mut lacks = Vec::new();
        for _ in 0..FETCHES {
            if fetch::fill(remote, &mut request.tensors) {
                reply = self.asked(request).await?;
            }
            lacks = lacking(model, request, &reply);
            if lacks.is_empty() {
                return Ok((reply, None));
            }
            lacks = gather::gather(remote, conn, &order, lacks, holders, progress).await;
            if lacks.is_empty() {
                continue;
            }
            if remote.is_pushed() {
                break;
            }
            let fetched = if facts::knows(conn.capabilities(), Feature::Fetch) {
                fetch::fetch(model, conn, &order, &lacks, progress).await
            } else {
                Err(fetch::FetchError::Source("its release cannot fetch weights".to_string()))
            };
            if let Err(error) = fetched {
                tracing::warn!(
                    worker = conn.name(),
                    %error,
                    "the worker cannot fetch its weights: the coordinator fetches the missing ones and sends them to it"
                );
                break;
            }
        }
        let relayed = relay::relay(model, remote, &order, &lacks, progress).await;
        let relayed = relayed.map_err(|error| {
            let (worker, reason) = (conn.name().to_string(), error.to_string());
            failed(WorkerError::Refused { worker, reason })
        })?;
        fetch::fill(remote, &mut request.tensors);
        Ok((self.asked(request).await?, Some(relayed)))
    }

    async fn asked(&self, request: &PrepareRequest) -> Result<PrepareReply, Refusal> {
        let reply =
            call_prepare(&self.stage.conn, request, self.ahead, looks_within(request)).await;
        reply.map_err(|error| Refusal::Worker(self.stage.member, error))
    }
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
        let reply = if ahead {
            control.prepare_ahead(request.clone()).await
        } else {
            control.prepare(request.clone()).await
        };
        reply.map(tonic::Response::into_inner).map_err(|s| conn.error(&s))
    };
    timeout(within, conn.while_alive(call)).await.unwrap_or_else(|_| {
        let reason = format!("it did not accept its stage within {} s", within.as_secs());
        Err(WorkerError::Stalled { worker: conn.name().to_string(), reason })
    })
}
