//! From connected workers to accepted stages: check, plan, prepare, push what is missing.
//!
//! All stages are prepared at the same time. Nothing is loaded here; that comes when every worker
//! has accepted its stage.

use std::sync::Arc;

use brigade_engine::arch;
use brigade_engine::error::ModelError;
use brigade_engine::gguf::TensorInfo;
use brigade_engine::kernels::{self, KV_PAGE};
use brigade_engine::state::Prefixes;
use brigade_proto::capability::Requirements;
use brigade_proto::control::{
    Blob, FileHint, KvType, PrepareReply, PrepareRequest, StageSpec, TensorRef,
};
use brigade_worker::hashes::{HashError, file_hints};
use brigade_worker::host::host_id;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::conn::{Conn, WorkerError};
use super::facts::worker_facts;
use super::lane::LineEnds;
use super::lease::Lease;
use super::placed::{Identity, PlacedStage};
use super::reconcile::MemberId;
use super::states::StateDoors;
use super::{LineEvent, StageOptions, hashes, push};
use crate::handle::{LineInfo, StageInfo};
use crate::model::Model;
use crate::plan::{Plan, PlanError, PlanSettings, plan};
use crate::sched::LineSpec;

/// Why layers could not be placed.
#[derive(Debug, Error)]
pub enum PlaceError {
    /// A worker cannot or will not take its stage.
    #[error("{error}")]
    Worker {
        /// Which member.
        member: MemberId,
        /// Why.
        error: WorkerError,
    },
    /// The model does not fit the workers.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The model has something that no kernel computes.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model's file cannot be read any more.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// A task of this process ended without a result.
    #[error("placing a stage ended unexpectedly")]
    Aborted,
}

/// A line whose stages have been accepted.
#[derive(Clone, Debug)]
pub struct Placement {
    /// First stage first.
    pub stages: Vec<PlacedStage>,
    /// What the scheduler may use.
    pub line: LineSpec,
    /// Who built it, in which epoch.
    pub identity: Identity,
    /// Weights of all stages.
    pub weight_bytes: u64,
    /// The table all stages were told to use.
    kernels: Option<String>,
    /// The workers are ours until their heartbeats are listened to, or this is dropped.
    _lease: Arc<Lease>,
}

impl Placement {
    /// Where the line begins and ends.
    pub fn ends(&self) -> LineEnds {
        let address = |stage: Option<&PlacedStage>| {
            stage.expect("a placement has stages").conn.address().clone()
        };
        LineEnds {
            first: address(self.stages.first()),
            last: address(self.stages.last()),
            n_stages: self.stages.len() as u32,
            insecure_network: self.stages.iter().any(|s| s.conn.insecure_network()),
        }
    }

    /// Where the states of its sequences are.
    pub fn doors(&self) -> StateDoors {
        StateDoors::new(self.identity.clone(), self.stages.clone())
    }

    /// The line for people.
    pub fn info(&self) -> LineInfo {
        let stage = |s: &PlacedStage| {
            let caps = s.conn.capabilities();
            let kernels = &self.kernels;
            StageInfo {
                worker: s.conn.name().to_string(),
                layers: s.layers.clone(),
                kernels: kernels.clone().unwrap_or_else(|| caps.kernels.clone()),
                threads: caps.threads,
                gb_per_second: caps.gb_per_second,
                gop_per_second: caps.gop_per_second,
            }
        };
        LineInfo { stages: self.stages.iter().map(stage).collect() }
    }
}

/// Plans the model over `conns` and has every chosen worker accept its stage, with all the bytes
/// it needs at hand.
///
/// # Errors
/// [`PlaceError`]; nothing is loaded then.
pub async fn place(
    model: &Arc<Model>,
    conns: Vec<(MemberId, Conn)>,
    options: &StageOptions,
    identity: Identity,
    events: &mpsc::Sender<LineEvent>,
) -> Result<Placement, PlaceError> {
    let needs = requirements(model, options);
    for (member, conn) in &conns {
        conn.check(&needs).map_err(|error| PlaceError::Worker { member: *member, error })?;
    }
    warn_about_kernels(&conns, options);
    let facts = worker_facts(conns.iter().map(|(_, c)| (c.name(), c.capabilities())));
    let settings = settings(model, options);
    let plan = plan(&model.facts(engine_kv(options.kv_type))?, &facts, &settings)?;
    tracing::info!("plan:\n{}", plan.explain());
    let stages: Vec<PlacedStage> = plan
        .stages
        .iter()
        .map(|s| {
            let (member, conn) = conns[s.worker].clone();
            PlacedStage { member, conn, layers: s.layers.clone() }
        })
        .collect();
    let weight_bytes = plan.stages.iter().map(|s| s.memory.weights).sum();
    let line = line_spec(&plan, &settings, model.spec.prefixes());
    let kernels = options.kernels.clone();
    let held = stages.iter().map(|stage| stage.conn.clone());
    let _lease = Arc::new(Lease::hold(held, identity.epoch));
    let placement = Placement { stages, line, identity, weight_bytes, kernels, _lease };
    prepare_all(model, &placement, options, events).await?;
    Ok(placement)
}

fn requirements(model: &Model, options: &StageOptions) -> Requirements {
    let mut quant_types: Vec<String> =
        model.gguf.tensors().iter().map(|t| t.ty.to_string()).collect();
    quant_types.sort_unstable();
    quant_types.dedup();
    Requirements {
        architecture: model.spec.arch.clone(),
        quant_types,
        wire_type: options.wire_type,
        kv_type: options.kv_type,
        kernels: options.kernels.clone(),
    }
}

/// Tokens are the same bits only where all stages use one kernel table.
fn warn_about_kernels(conns: &[(MemberId, Conn)], options: &StageOptions) {
    let mut tables: Vec<&str> =
        conns.iter().map(|(_, c)| c.capabilities().kernels.as_str()).collect();
    tables.sort_unstable();
    tables.dedup();
    if options.kernels.is_none() && tables.len() > 1 {
        tracing::warn!(
            tables = tables.join(", "),
            "workers use different kernel tables: results depend on the cut; --kernels NAME forces one"
        );
    }
}

/// What the planner is told of this line.
pub fn settings(model: &Model, options: &StageOptions) -> PlanSettings {
    PlanSettings {
        ctx: model.ctx(options.ctx),
        max_seqs: options.max_seqs,
        keep: model.keep(options.keep, options.max_seqs),
        block_positions: KV_PAGE as u32,
        max_rows: options.max_rows,
        prompt_per_generated: options.balance.prompt_per_generated(),
        ..PlanSettings::default()
    }
}

/// The engine's name for a KV type.
pub fn engine_kv(kv: KvType) -> kernels::KvType {
    match kv {
        KvType::F32 => kernels::KvType::F32,
        KvType::Q80 => kernels::KvType::Q8_0,
        KvType::F16 | KvType::Unspecified => kernels::KvType::F16,
    }
}

fn line_spec(plan: &Plan, settings: &PlanSettings, prefixes: Prefixes) -> LineSpec {
    LineSpec {
        n_stages: plan.stages.len(),
        n_blocks: plan.capacity.n_blocks,
        n_slots: plan.capacity.n_slots,
        n_kept: plan.capacity.n_kept,
        prefixes,
        block_positions: settings.block_positions,
        max_positions: settings.ctx,
        max_rows: settings.max_rows,
    }
}

async fn prepare_all(
    model: &Arc<Model>,
    placement: &Placement,
    options: &StageOptions,
    events: &mpsc::Sender<LineEvent>,
) -> Result<(), PlaceError> {
    let files = file_hints(model.files().map_err(HashError::from)?, &host_id())?;
    let mut tasks = JoinSet::new();
    for index in 0..placement.stages.len() {
        let request = prepare_request(model, placement, index, options, files.clone());
        let stage = placement.stages[index].clone();
        let (model, events) = (model.clone(), events.clone());
        tasks.spawn(async move {
            let result = prepare(&model, &stage, request, &events).await;
            result.map_err(|error| match error {
                PrepareError::Worker(error) => PlaceError::Worker { member: stage.member, error },
                PrepareError::Hash(error) => error.into(),
            })
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|_| PlaceError::Aborted)??;
    }
    Ok(())
}

fn prepare_request(
    model: &Model,
    placement: &Placement,
    index: usize,
    options: &StageOptions,
    files: Vec<FileHint>,
) -> PrepareRequest {
    let (stage, line) = (&placement.stages[index], &placement.line);
    let next_hop =
        placement.stages.get(index + 1).map_or(String::new(), |s| s.conn.address().to_string());
    let spec = StageSpec {
        stage: index as u32,
        n_stages: placement.stages.len() as u32,
        layer_begin: stage.layers.start as u32,
        layer_end: stage.layers.end as u32,
        max_seqs: line.n_slots + line.n_kept,
        n_blocks: line.n_blocks,
        max_ctx: line.max_positions,
        max_rows: line.max_rows,
        kv_type: options.kv_type.into(),
        threads: 0,
        kernels: options.kernels.clone().unwrap_or_default(),
        wire_type: options.wire_type.into(),
        next_hop,
    };
    let unhashed = |t: &&TensorInfo| TensorRef {
        name: t.name.clone(),
        blob: Some(Blob { blake3: Default::default(), nbytes: t.nbytes }),
    };
    PrepareRequest {
        epoch: placement.identity.epoch,
        coordinator_id: placement.identity.coordinator_id.clone(),
        spec: Some(spec),
        model_name: model.name().to_string(),
        header: Some(header_blob(model)),
        tensors: stage_tensors(model, stage).iter().map(unhashed).collect(),
        files,
    }
}

fn stage_tensors<'m>(model: &'m Model, stage: &PlacedStage) -> Vec<&'m TensorInfo> {
    arch::stage_tensors(&model.gguf, &model.spec, &stage.layers)
}

fn header_blob(model: &Model) -> Blob {
    let blake3 = model.header_hash.as_bytes().to_vec().into();
    Blob { blake3, nbytes: model.header.len() as u64 }
}

enum PrepareError {
    Worker(WorkerError),
    Hash(HashError),
}

impl From<WorkerError> for PrepareError {
    fn from(error: WorkerError) -> Self {
        Self::Worker(error)
    }
}

async fn prepare(
    model: &Arc<Model>,
    stage: &PlacedStage,
    mut request: PrepareRequest,
    events: &mpsc::Sender<LineEvent>,
) -> Result<(), PrepareError> {
    let conn = &stage.conn;
    let mut reply = call_prepare(conn, &request).await?;
    if reply.needs_hashes {
        let hashed = hashes::of_stage(model.clone(), stage.layers.clone(), events.clone());
        let hashes = hashed.await.map_err(PrepareError::Hash)?;
        for (tensor, hash) in request.tensors.iter_mut().zip(&hashes) {
            if let Some(blob) = &mut tensor.blob {
                blob.blake3 = hash.as_bytes().to_vec().into();
            }
        }
        reply = call_prepare(conn, &request).await?;
    }
    let job = push::Job {
        epoch: request.epoch,
        coordinator_id: request.coordinator_id,
        stage: request.spec.map_or(0, |s| s.stage),
        tensors: request.tensors,
        weight_bytes: reply.weight_bytes,
    };
    push::push(model, conn, job, reply.missing, events).await?;
    Ok(())
}

async fn call_prepare(conn: &Conn, request: &PrepareRequest) -> Result<PrepareReply, WorkerError> {
    let mut control = conn.control();
    let call = async {
        let reply = control.prepare(request.clone()).await;
        reply.map(tonic::Response::into_inner).map_err(|s| conn.error(&s))
    };
    conn.while_alive(call).await
}
