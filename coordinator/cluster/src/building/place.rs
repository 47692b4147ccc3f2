//! Places a model on connected workers, until each of them has accepted its stage.
//!
//! The steps are: plan the cuts, tell each worker its stage, and send it the bytes that it lacks. Workers that cannot run the
//! model were refused when they came ([`demands`]). All stages go through this at the same time. Nothing is loaded before every worker
//! has accepted.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use brigade_engine::batch::MAX_DRAFTED;
use brigade_engine::kernels;
use brigade_gguf::TensorInfo;
use brigade_plan::{
    Checkpoint, DiskFacts, DraftFacts, ModelFacts, NodeFacts, Plan, PlanError, PlanSettings,
    StageMemory, WorkerFacts, plan_leaving_room,
};
use brigade_proto::capability;
use brigade_proto::control::{
    Blob, CheckpointMode, Checkpoints, Feature, FileHint, KvType, PrepareRequest, StageSpec,
    TensorRef, WireType,
};
use brigade_sched::LineSpec;
use brigade_spec::{ModelError, OwnDraftsSpec, Prefixes};
use brigade_worker::host::host_id;
use brigade_worker::weights::hashes::{HashError, file_hints};
use bytes::Bytes;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::building::demands;
use crate::building::lane::LineEnds;
use crate::building::remarks::{tell_kernels, tell_own_drafts};
use crate::config::StageOptions;
use crate::members::conn::{Conn, Present, WorkerError};
use crate::members::facts::{self, worker_facts};
use crate::members::lease::Lease;
use crate::members::node_disk;
use crate::members::node_memory;
use crate::members::placed_stage::{Identity, PlacedStage, out_of_reach};
use crate::progress::Progress;
use crate::reconcile::MemberId;
use crate::states::transfer::StageStates;
use crate::weights::gather;
use crate::weights::prepare::{Refusal, StageOrder, prepare};
use brigade_line::handle::{LineInfo, StageInfo};
use brigade_line::model::Model;

/// When one worker has failed, how long the others' failures are waited for: so that all are known at once.
const OTHERS_FAIL_WITHIN: Duration = Duration::from_millis(500);

/// Why layers could not be placed.
#[derive(Debug, Error)]
pub enum PlaceError {
    /// Workers that cannot or will not take their stages, and why.
    #[error("{}", .0.iter().map(|(_, error)| error.to_string()).collect::<Vec<_>>().join("; "))]
    Workers(Vec<(MemberId, WorkerError)>),
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

/// A line whose stages have their workers, which have accepted them or are to be asked.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The stages in order, each with its worker.
    pub stages: Vec<PlacedStage>,
    /// Sizes of the line, for the scheduler.
    pub line: LineSpec,
    /// The coordinator's id, and the line's epoch.
    pub identity: Identity,
    /// The table all stages were told to use.
    kernels: Option<String>,
    /// Where copies of states go.
    checkpoint: Checkpoint,
    /// Whether layers with a window keep only the positions in it.
    windows: bool,
    /// Whether values lose bits between workers.
    cuts_lose_bits: bool,
    /// About what a KV page takes on all stages together, and a sequence besides.
    kept_bytes: (u64, u64),
    /// The workers are ours until their heartbeats are listened to, or this is dropped.
    _lease: Arc<Lease>,
}

impl Placement {
    /// Where the line begins and ends.
    pub fn ends(&self) -> LineEnds {
        let reach = |stage: Option<&PlacedStage>| {
            stage.expect("a placement has stages").conn.reach().clone()
        };
        LineEnds {
            first: reach(self.stages.first()),
            last: reach(self.stages.last()),
            n_stages: self.stages.len() as u32,
            later: self.stages.iter().all(|stage| knows(&stage.conn, Feature::LaterDraws)),
        }
    }

    /// The key of a stage's worker, for its neighbours; empty where there is no such stage.
    fn key_of(&self, stage: Option<usize>) -> Bytes {
        let stage = stage.and_then(|stage| self.stages.get(stage));
        stage.map_or_else(Bytes::new, |stage| stage.conn.reach().key_bytes())
    }

    /// Checks that all workers speak TLS with each other, or none does.
    ///
    /// # Errors
    /// [`PlaceError::Workers`], with those that do not.
    fn check_alike(&self) -> Result<(), PlaceError> {
        let (tls, plain): (Vec<_>, Vec<_>) =
            self.stages.iter().partition(|stage| stage.conn.reach().key().is_some());
        if tls.is_empty() || plain.is_empty() {
            return Ok(());
        }
        let refused = |stage: &PlacedStage| {
            let reason = "it has no certificate, and other workers of the line have: join it with a token too \
                          (brigade token create)";
            let worker = stage.conn.name().to_string();
            (stage.member, WorkerError::Refused { worker, reason: reason.to_string() })
        };
        Err(PlaceError::Workers(plain.into_iter().map(refused).collect()))
    }

    /// The workers that have the states of the stage's sequences; `beside`: those of them that are not on the line;
    /// `present`: all that are connected to the server.
    pub fn state_access(&self, beside: Vec<Conn>, present: Present) -> StageStates {
        StageStates {
            identity: self.identity.clone(),
            stages: self.stages.clone(),
            beside,
            present,
            checkpoint: self.checkpoint,
            cuts_lose_bits: self.cuts_lose_bits,
            lines: Arc::default(),
        }
    }

    /// The keys of all its workers, as they are told; empty where they speak plain.
    pub fn line_keys(&self) -> Bytes {
        let keys: Vec<Bytes> =
            self.stages.iter().map(|stage| stage.conn.reach().key_bytes()).collect();
        keys.concat().into()
    }

    /// The line for people.
    pub fn info(&self) -> LineInfo {
        let stage = |s: &PlacedStage| {
            let caps = s.conn.capabilities();
            let kernels = self.kernels.clone().unwrap_or_else(|| caps.kernels.clone());
            StageInfo {
                worker: s.conn.name().to_string(),
                layers: s.layers.clone(),
                numerics: capability::numerics(caps, &kernels),
                kernels,
                threads: caps.threads,
                gb_per_second: caps.gb_per_second,
                gop_per_second: caps.gop_per_second,
            }
        };
        let LineSpec { n_blocks, block_positions, n_slots, max_positions, .. } = self.line;
        LineInfo {
            stages: self.stages.iter().map(stage).collect(),
            n_ctx: max_positions,
            share: n_blocks.saturating_mul(block_positions) / n_slots.max(1),
            kept_bytes: self.kept_bytes,
        }
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
    progress: &Progress,
    holders: &[Conn],
) -> Result<Placement, PlaceError> {
    let placement = placed(model, conns, options, identity).await?;
    tell_kernels(&placement.info());
    let mut preparing = JoinSet::new();
    for order in orders(model, &placement, options, holders)? {
        preparing.spawn(prepare(model.clone(), order, progress.clone()));
    }
    all_prepared(preparing).await?;
    Ok(placement)
}

/// Plans the model over `conns`; the workers are not told yet.
///
/// # Errors
/// [`PlaceError`].
pub async fn placed(
    model: &Model,
    conns: Vec<(MemberId, Conn)>,
    options: &StageOptions,
    identity: Identity,
) -> Result<Placement, PlaceError> {
    let held = held_layers(&conns, model).await;
    let all = || conns.iter().map(|(_, conn)| conn);
    // Workers that have no room refuse in their own words.
    let disks = node_disk::disks_of(&all().collect::<Vec<_>>());
    let plan = match plan_holding(model, all(), &held, None, &disks, options) {
        Err(PlaceError::Plan(PlanError::DiskLacks(_))) => {
            plan_holding(model, all(), &held, None, &[], options)?
        }
        plan => plan?,
    };
    let own = own_drafts(model, all(), options);
    tell_own_drafts(model, own.is_some(), options);
    let settings = plan.settings;
    tracing::info!("{}", plan.in_a_line());
    for note in &plan.notes {
        tracing::info!("about the plan: {note}");
    }
    tracing::debug!(plan = plan.explain(), "the plan with its reasons");
    let stages: Vec<PlacedStage> = plan
        .stages
        .iter()
        .map(|s| {
            let (member, conn) = conns[s.worker].clone();
            PlacedStage::of(s, member, conn, &settings)
        })
        .collect();
    let all_know = |feature| stages.iter().all(|stage| knows(&stage.conn, feature));
    let line = LineSpec {
        companions: all_know(Feature::Companion),
        ahead: all_know(Feature::Ahead),
        grows: all_know(Feature::Growth),
        own_drafts: own.map_or(0, |own| own.depth(MAX_DRAFTED) as u32),
        ..line_spec(&plan, &settings, model.spec.prefixes(settings.windows))
    };
    let kernels = options.kernels.clone();
    let held = stages.iter().map(|stage| stage.conn.clone());
    let _lease = Arc::new(Lease::hold(held, identity.epoch));
    let checkpoint = plan.settings.checkpoint;
    let windows = settings.windows;
    let cuts_lose_bits = options.wire_type != WireType::F32;
    let kept_bytes = kept_bytes(&plan);
    let placement = Placement {
        stages,
        line,
        identity,
        kernels,
        checkpoint,
        windows,
        cuts_lose_bits,
        kept_bytes,
        _lease,
    };
    placement.check_alike()?;
    Ok(placement)
}

/// Layers of `model` that each worker has in memory, as it reports; none for a worker that does not answer.
async fn held_layers(conns: &[(MemberId, Conn)], model: &Model) -> Vec<Range<usize>> {
    let mut asked = JoinSet::new();
    for (index, (_, conn)) in conns.iter().enumerate() {
        let conn = conn.clone();
        // A silent worker is found out by the calls that need it.
        asked.spawn(async move { (index, conn.health(0).await.ok()) });
    }
    let (wanted, n_layers) = (model.header_hash.as_bytes(), model.spec.n_layer());
    let mut held = vec![0..0; conns.len()];
    while let Some(answer) = asked.join_next().await {
        let Ok((index, Some(reply))) = answer else { continue };
        let Some(layers) = reply.held_layers else { continue };
        let (begin, end) = (layers.begin as usize, layers.end as usize);
        if layers.model[..] == wanted[..] && begin < end && end <= n_layers {
            held[index] = begin..end;
        }
    }
    held
}

/// The cuts over these workers, in this order.
///
/// # Errors
/// [`PlaceError::Plan`] where they do not suffice, and what would help.
pub fn plan_over<'a>(
    model: &Model,
    conns: impl Iterator<Item = &'a Conn>,
    options: &StageOptions,
) -> Result<Plan, PlaceError> {
    plan_holding(model, conns, &[], None, &[], options)
}

/// The same as [`plan_over`], where the workers' nodes and caches leave to the line what `nodes` and `disks` say of each
/// worker. No `disks`: none is looked at.
///
/// # Errors
/// As [`plan_over`].
pub fn plan_over_nodes<'a>(
    model: &Model,
    conns: impl Iterator<Item = &'a Conn>,
    nodes: &[Option<NodeFacts>],
    disks: &[Option<DiskFacts>],
    options: &StageOptions,
) -> Result<Plan, PlaceError> {
    plan_holding(model, conns, &[], Some(nodes), disks, options)
}

/// The same as [`plan_over`], for workers of this release that need not exist yet.
///
/// # Errors
/// As [`plan_over`].
pub fn plan_over_facts(
    model: &Model,
    workers: &[WorkerFacts],
    options: &StageOptions,
) -> Result<Plan, PlaceError> {
    let mut facts = model.facts(engine_kv(options.kv_type))?;
    if own_drafts(model, std::iter::empty(), options).is_some() {
        facts.drafts = DraftFacts::from_gguf(&model.gguf, engine_kv(options.kv_type))?;
    }
    Ok(planned(&facts, workers, &demands::settings(model, options), options)?)
}

/// The same as [`plan_over`], for workers that have layers in memory. `nodes`: what their nodes leave to the line, where
/// that is known better than by the workers' reports.
fn plan_holding<'a>(
    model: &Model,
    conns: impl Iterator<Item = &'a Conn>,
    held: &[Range<usize>],
    nodes: Option<&[Option<NodeFacts>]>,
    disks: &[Option<DiskFacts>],
    options: &StageOptions,
) -> Result<Plan, PlaceError> {
    let conns: Vec<&Conn> = conns.collect();
    let told = conns.iter().map(|conn| (conn.name(), conn.capabilities()));
    let mut facts = worker_facts(told);
    for (facts, conn) in facts.iter_mut().zip(&conns) {
        facts.gbps /= conn.slowdown();
        facts.gops = facts.gops.map(|gops| gops / conn.slowdown());
    }
    facts.iter_mut().zip(held).for_each(|(facts, held)| facts.holds = held.clone());
    match nodes {
        Some(nodes) => node_memory::tell(&mut facts, nodes),
        None => node_memory::tell(&mut facts, &node_memory::nodes_of(&conns)),
    }
    node_disk::tell(&mut facts, disks);
    let mut settings = demands::settings(model, options);
    if settings.windows && !conns.iter().all(|conn| knows(conn, Feature::Windows)) {
        tracing::info!(
            "a worker of an earlier release keeps all positions of layers with a window, so the other workers do too: upgrade it to save memory"
        );
        settings =
            PlanSettings { windows: false, keep: demands::keep(model, options, false), ..settings };
    }
    let mut facts_of = model.facts(engine_kv(options.kv_type))?;
    if own_drafts(model, conns.iter().copied(), options).is_some() {
        facts_of.drafts = DraftFacts::from_gguf(&model.gguf, engine_kv(options.kv_type))?;
    }
    Ok(planned(&facts_of, &facts, &settings, options)?)
}

/// The plan by these settings. A context that is not said leaves room for the fleet's other models.
fn planned(
    model: &ModelFacts,
    workers: &[WorkerFacts],
    settings: &PlanSettings,
    options: &StageOptions,
) -> Result<Plan, PlanError> {
    let others = if options.ctx.is_none() { &options.others[..] } else { &[] };
    plan_leaving_room(model, workers, settings, options.cut.as_ref(), others)
}

/// The model's own blocks of drafts, if they are to be loaded: all stages must understand the messages about them.
fn own_drafts<'m, 'a>(
    model: &'m Model,
    mut conns: impl Iterator<Item = &'a Conn>,
    options: &StageOptions,
) -> Option<&'m OwnDraftsSpec> {
    let needed = [Feature::OwnDrafts, Feature::Ahead];
    let own = model.spec.own_drafts.as_ref().filter(|_| options.own_drafts)?;
    conns.all(|conn| needed.iter().all(|feature| knows(conn, *feature))).then_some(own)
}

fn knows(conn: &Conn, feature: Feature) -> bool {
    facts::knows(conn.capabilities(), feature)
}

/// The engine's name for a KV type.
pub fn engine_kv(kv: KvType) -> kernels::KvType {
    match kv {
        KvType::F32 => kernels::KvType::F32,
        KvType::Q80 => kernels::KvType::Q8_0,
        KvType::F16 | KvType::Unspecified => kernels::KvType::F16,
    }
}

/// About what a KV page takes on all stages together, and what a sequence takes besides.
fn kept_bytes(plan: &Plan) -> (u64, u64) {
    let sum = |of: fn(&StageMemory) -> u64| plan.stages.iter().map(|s| of(&s.memory)).sum::<u64>();
    let (pages, states) = (u64::from(plan.capacity.n_blocks), plan.capacity.n_states());
    (sum(|memory| memory.kv) / pages.max(1), sum(|memory| memory.state) / states.max(1))
}

/// The scheduler's sizes of a line with this plan.
fn line_spec(plan: &Plan, settings: &PlanSettings, prefixes: Prefixes) -> LineSpec {
    LineSpec {
        n_stages: plan.stages.len(),
        n_blocks: plan.capacity.n_blocks,
        n_slots: plan.capacity.n_slots,
        n_kept: plan.capacity.n_kept,
        prefixes,
        block_positions: settings.block_positions,
        max_positions: plan.ctx(),
        max_rows: settings.max_rows,
        companions: false,
        ahead: false,
        grows: false,
        own_drafts: 0,
    }
}

/// An order for each stage of a placement, to be prepared now. `holders`: workers that may have weights.
///
/// # Errors
/// The model's files cannot be read any more, or a worker cannot reach another one.
pub fn orders(
    model: &Model,
    placement: &Placement,
    options: &StageOptions,
    holders: &[Conn],
) -> Result<Vec<StageOrder>, PlaceError> {
    let files = match model.files() {
        Ok(files) => file_hints(files, &host_id())?,
        Err(_) if model.remote.is_some() => Vec::new(),
        Err(error) => return Err(HashError::from(error).into()),
    };
    let lost = out_of_reach(&placement.stages, placement.checkpoint == Checkpoint::Buddy);
    if !lost.is_empty() {
        return Err(PlaceError::Workers(lost));
    }
    let order = |(index, stage): (usize, &PlacedStage)| {
        let request = prepare_request(model, placement, index, options, files.clone());
        let holders = match model.remote {
            Some(_) => gather::holders(&stage.conn, holders.iter()),
            None => Vec::new(),
        };
        StageOrder { stage: stage.clone(), request, ahead: false, holders }
    };
    Ok(placement.stages.iter().enumerate().map(order).collect())
}

async fn all_prepared(mut tasks: JoinSet<Result<(), Refusal>>) -> Result<(), PlaceError> {
    let mut failed = Vec::new();
    loop {
        // A failed attempt waits for no more bytes; other failures come at about the same time.
        let next = if failed.is_empty() {
            tasks.join_next().await
        } else {
            timeout(OTHERS_FAIL_WITHIN, tasks.join_next()).await.unwrap_or(None)
        };
        match next {
            None => break,
            Some(done) => match done.map_err(|_| PlaceError::Aborted)? {
                Ok(()) => {}
                Err(Refusal::Worker(member, error)) => failed.push((member, error)),
                Err(Refusal::Hash(error)) => return Err(error.into()),
            },
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(PlaceError::Workers(failed)) }
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
        // The same on every line: some models turn positions in another way in a longer context.
        max_ctx: model.ctx(options.ctx),
        max_rows: line.max_rows,
        kv_type: options.kv_type.into(),
        threads: 0,
        kernels: options.kernels.clone().unwrap_or_default(),
        wire_type: options.wire_type.into(),
        next_hop,
        previous_key: placement.key_of(index.checked_sub(1)),
        next_key: placement.key_of(Some(index + 1)),
        checkpoints: checkpoints(placement, index),
        line_keys: placement.line_keys(),
        windows: placement.windows,
        own_drafts: has_own_drafts(placement, stage, model),
        host_experts: stage.host_experts,
        control_vectors: model.control_vectors_of(stage.layers.clone()),
        control_vectors_id: model.control_vectors_id(),
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
        tensors: stage_tensors(model, placement, stage).iter().map(unhashed).collect(),
        files,
    }
}

/// The receivers of stages' copies: each stage's go to the next one of the line, and the last one's to the first.
fn checkpoints(placement: &Placement, index: usize) -> Option<Checkpoints> {
    let (stages, n) = (&placement.stages, placement.stages.len());
    let order = Checkpoints { memory_bytes: stages[index].copy_bytes, ..Checkpoints::default() };
    match placement.checkpoint {
        Checkpoint::Off => None,
        Checkpoint::Disk => Some(Checkpoints { mode: CheckpointMode::Disk.into(), ..order }),
        Checkpoint::Buddy if n < 2 => {
            tracing::warn!(
                "--checkpoint buddy: one worker has all layers, and no neighbour for its copies"
            );
            None
        }
        Checkpoint::Buddy => {
            let (next, previous) = ((index + 1) % n, (index + n - 1) % n);
            Some(Checkpoints {
                mode: CheckpointMode::Buddy.into(),
                buddy: stages[next].conn.address().to_string(),
                buddy_key: placement.key_of(Some(next)),
                kept_key: placement.key_of(Some(previous)),
                ..order
            })
        }
    }
}

/// Whether a stage has the model's own blocks of drafts.
fn has_own_drafts(placement: &Placement, stage: &PlacedStage, model: &Model) -> bool {
    placement.line.own_drafts > 0 && stage.layers.end == model.spec.n_layer()
}

fn stage_tensors<'m>(
    model: &'m Model,
    placement: &Placement,
    stage: &PlacedStage,
) -> Vec<&'m TensorInfo> {
    let own_drafts = has_own_drafts(placement, stage, model);
    brigade_spec::stage_tensors_with_drafts(&model.gguf, &model.spec, &stage.layers, own_drafts)
}

fn header_blob(model: &Model) -> Blob {
    let blake3 = model.header_hash.as_bytes().to_vec().into();
    Blob { blake3, nbytes: model.header.len() as u64 }
}
