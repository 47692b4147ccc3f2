//! The planner: assigns layers to workers, and sizes the KV cache.
//!
//! It is pure: facts about a model and its workers go in, and a [`Plan`] with its reasons comes out. Each
//! worker gets consecutive layers. The cuts are exact: within the memory limits, no other cut of the same
//! workers has a faster slowest stage. Equal workers get equal work rather than equal numbers of layers,
//! since the head is worth layers of its own.
//!
//! The planner knows no architecture and no network. Only [`ModelFacts::from_gguf`] knows files.
//!
//! Reading order:
//!
//! - `facts` is the planner's input; `from_gguf` and `cluster_file` read it. `cost` computes time and memory of
//!   layers.
//! - `cuts` finds the best cuts, `manual_cuts` takes the operator's, `kept_weights` leaves weights where they are.
//! - `capacity` sizes the KV cache, `place` chooses all of it together, and `nodes` says how much of a node's memory
//!   each of its stages is planned with. `stored` is what stages need in caches, and `disks` keeps them within their limits.
//!   `predict` runs the plan in the simulator.
//! - `describe`, `explain`, `error` and `advice` put it into words.

mod advice;
mod balance;
mod capacity;
mod cluster_file;
mod cost;
mod cuts;
mod describe;
mod disks;
mod error;
mod explain;
mod facts;
mod from_gguf;
mod host_experts;
mod keep;
mod kept_weights;
mod layer_sums;
mod layer_time;
mod leave_room;
mod manual_cuts;
mod nodes;
mod place;
mod predict;
mod stored;
mod units;

use std::ops::Range;

use brigade_engine::kernels::KV_PAGE;
use brigade_spec::Prefixes;
use serde::Serialize;

pub use advice::Advice;
pub use balance::Balance;
pub use brigade_worker::backend::product_class::{ByClass, ProductClass};
pub use brigade_worker::backend::work_memory::LoadingMemory;
pub use brigade_worker::machine::memory::PROCESS_BYTES;
pub use cluster_file::{ClusterFileError, parse_cluster_file};
pub use cost::{StageMemory, StageTime};
pub use error::{DiskShortage, PlanError, Shortage, SmallCache};
pub use facts::{
    DiskFacts, DraftFacts, HostExperts, HostFacts, LayerFacts, LinkFacts, ModelFacts, NodeFacts,
    SequenceBytes, WorkerFacts,
};
pub use keep::Keep;
pub use leave_room::plan_leaving_room;
pub use manual_cuts::HandCut;
pub use predict::Prediction;
pub use stored::StoredFacts;
pub use units::{format_bytes, parse_bytes};

/// Most workers in a line.
pub const MAX_WORKERS: usize = 256;

/// The type of KV cache values that takes the least memory, as typed.
const KV_TYPE_SMALLEST: &str = "q8_0";

/// Context of a sequence that there must be room for where neither the operator nor the model asks for less. As much more as
/// memory allows is taken, up to the model's own.
pub const LEAST_CTX: u32 = 4096;

/// Limit of open sequences where the operator does not say.
pub const DEFAULT_MAX_SEQS: u32 = 16;

/// Most sequences that may be kept.
pub const MAX_KEEP: u32 = 4096;

/// Kept sequences where the operator does not say. Where a kept sequence takes only KV pages that are otherwise free,
/// it is several for each running one. Where it takes a recurrent state, it is as many as running ones. 0 for an
/// encoder, where no sequence can begin with another.
pub fn default_keep(prefixes: Prefixes, max_seqs: u32) -> u32 {
    let keep = match prefixes {
        Prefixes::All => max_seqs.saturating_mul(4),
        Prefixes::Whole => max_seqs,
        Prefixes::None => 0,
    };
    keep.min(MAX_KEEP)
}

/// Where copies of sequences' states go, so that less is computed again when a worker is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Checkpoint {
    /// Nowhere: all is computed again.
    #[default]
    Off,
    /// Into the memory of the next worker of the line.
    Buddy,
    /// Copies go to each worker's own disk.
    Disk,
}

/// The operator's settings, and the workload for which cuts are balanced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlanSettings {
    /// Longest sequence, in positions, if there is memory for it.
    pub ctx: u32,
    /// The least KV cache, in positions; less than `ctx` where `ctx` is a default.
    pub least_ctx: u32,
    /// Positions that are wished for each sequence when all are open.
    pub share_ctx: u32,
    /// Sequences open at once.
    pub max_seqs: u32,
    /// What is kept beside those for later requests that begin alike, if there is memory for it.
    pub keep: Keep,
    /// Positions in a KV page (the engine's `KV_PAGE`).
    pub block_positions: u32,
    /// Most rows in a ubatch.
    pub max_rows: u32,
    /// Streams that decode together in a ubatch.
    pub decode_batch: u32,
    /// Positions a decoding stream has behind it.
    pub typical_positions: u32,
    /// Prompt tokens computed for each generated one ([`Balance`]).
    pub prompt_per_generated: f64,
    /// Where copies of sequences' states go.
    pub checkpoint: Checkpoint,
    /// Whether layers with a window keep only the pages that rows to come see.
    pub windows: bool,
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            ctx: LEAST_CTX,
            least_ctx: LEAST_CTX,
            share_ctx: LEAST_CTX,
            max_seqs: DEFAULT_MAX_SEQS,
            keep: Keep::NOTHING,
            block_positions: KV_PAGE as u32,
            max_rows: 512,
            decode_batch: 4,
            typical_positions: 512,
            prompt_per_generated: Balance::MIXED.prompt_per_generated(),
            checkpoint: Checkpoint::Off,
            windows: false,
        }
    }
}

/// The number of pages and sequences that fit on every stage at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// Number of KV pages.
    pub n_blocks: u32,
    /// Sequences that may run.
    pub n_slots: u32,
    /// Sequences that may be kept beside those.
    pub n_kept: u32,
}

impl Capacity {
    /// Recurrent states there is room for.
    pub fn n_states(&self) -> u64 {
        u64::from(self.n_slots) + u64::from(self.n_kept)
    }
}

/// A plan: where everything goes, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Name of the model.
    pub model: String,
    /// Stages in order of computation; none is empty.
    pub stages: Vec<StagePlan>,
    /// Indices of workers that hold nothing.
    pub unused: Vec<usize>,
    /// Common to all stages.
    pub capacity: Capacity,
    /// Bytes of a sequence's state on all stages together.
    pub sequence: SequenceBytes,
    /// KV pages that were wished for: one sequence of full length, and [`PlanSettings::share_ctx`] for each of all.
    pub wished_blocks: u32,
    /// The settings of this plan.
    pub settings: PlanSettings,
    /// The options of a cut by hand, such as `--cuts 12,24`; `None`: the planner chose the cuts.
    pub by_hand: Option<String>,
    /// Remarks about the plan as a whole.
    pub notes: Vec<String>,
}

impl Plan {
    /// Positions of the longest sequence that there is room for.
    pub fn ctx(&self) -> u32 {
        let pages = self.capacity.n_blocks.saturating_mul(self.settings.block_positions);
        self.settings.ctx.min(pages)
    }

    /// The time of a unit of work on the slowest stage, in microseconds.
    pub fn slowest_us(&self) -> f64 {
        self.stages.iter().map(|stage| stage.time.unit_us(&self.settings)).fold(0.0, f64::max)
    }

    /// Ideal over slowest stage: the share of time that stages compute at best, `0.0..=1.0`.
    pub fn balance(&self) -> f64 {
        self.balance_in(self.settings.prompt_per_generated)
    }

    /// The same if the line did this alone.
    pub fn balance_of(&self, work: Balance) -> f64 {
        self.balance_in(work.prompt_per_generated())
    }

    fn balance_in(&self, prompt_per_generated: f64) -> f64 {
        let settings = PlanSettings { prompt_per_generated, ..self.settings };
        let units: Vec<f64> = self.stages.iter().map(|s| s.time.unit_us(&settings)).collect();
        let slowest = units.iter().copied().fold(0.0, f64::max);
        units.iter().sum::<f64>() / (slowest * units.len() as f64)
    }
}

/// One stage of a [`Plan`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StagePlan {
    /// Index of the worker as given to [`plan`].
    pub worker: usize,
    /// Name of the worker.
    pub name: String,
    /// Layers of the stage.
    pub layers: Range<usize>,
    /// Whether it embeds the tokens.
    pub embedding: bool,
    /// Whether it has the head and samples.
    pub head: bool,
    /// Bytes, by what for.
    pub memory: StageMemory,
    /// Bytes that it needs in its worker's cache where the worker has not the model's file.
    #[serde(skip)]
    pub stored: u64,
    /// Bytes of a sequence's state on this stage.
    pub sequence: SequenceBytes,
    /// Bytes of the worker's limit that stay free.
    pub memory_left: u64,
    /// Layers whose routed experts lie with the host, beside the worker's GPU; empty: none.
    pub host_layers: Range<usize>,
    /// Bytes of that memory's limit that stay free, where there is such a memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_left: Option<u64>,
    /// Predicted time for a unit of work.
    pub time: StageTime,
    /// Operations for a prompt row.
    pub ops_per_row: f64,
    /// Bytes a row sends to the next stage.
    pub cut_bytes: u64,
    /// Share of the slowest stage's time, `0.0..=1.0`.
    pub share: f64,
    /// The reasons for its range of layers.
    pub reasons: Vec<String>,
}

/// Places `model` on `workers`. The order is the given one, unless it does not fit or leaves a worker idle, and
/// another order of few workers is better.
///
/// # Errors
/// [`PlanError::DoesNotFit`] says what every worker lacks and what would help. The other errors name an invalid
/// input.
pub fn plan(
    model: &ModelFacts,
    workers: &[WorkerFacts],
    settings: &PlanSettings,
) -> Result<Plan, PlanError> {
    check(model, workers, settings)?;
    nodes::with_least_parts(workers, |workers| {
        disks::within(model, workers, settings, |costs| {
            costs.drafting_slows = place::drafting_slows(costs);
            place::place(costs)
        })
    })
}

/// Places `model` on `workers` as `cut` says, in the given order.
///
/// # Errors
/// [`PlanError::Cut`] names what does not fit and what would; the others as for [`plan`].
pub fn plan_by_hand(
    model: &ModelFacts,
    workers: &[WorkerFacts],
    settings: &PlanSettings,
    cut: &HandCut,
) -> Result<Plan, PlanError> {
    check(model, workers, settings)?;
    nodes::with_least_parts(workers, |workers| {
        disks::within(model, workers, settings, |costs| manual_cuts::place(costs, cut))
    })
}

/// [`plan`], or [`plan_by_hand`] over the first workers that `cut` names; those beyond them are spare.
///
/// # Errors
/// As those; fewer workers than `cut` names are [`PlanError::Cut`].
pub fn plan_line(
    model: &ModelFacts,
    workers: &[WorkerFacts],
    settings: &PlanSettings,
    cut: Option<&HandCut>,
) -> Result<Plan, PlanError> {
    match cut {
        None => plan(model, workers, settings),
        Some(cut) => {
            let first = workers.get(..cut.n_workers()).unwrap_or(workers);
            plan_by_hand(model, first, settings, cut)
        }
    }
}

/// Bytes that `model` takes over so many workers with the smallest KV cache that serves `settings`: less is surely
/// too little.
pub fn least_bytes(model: &ModelFacts, settings: &PlanSettings, n_workers: usize) -> u64 {
    let costs = cost::Costs::new(model, &[], settings);
    let least = capacity::wishes(settings).least;
    costs.memory_over(n_workers, capacity::capacity(settings, least, 0))
}

fn check(
    model: &ModelFacts,
    workers: &[WorkerFacts],
    settings: &PlanSettings,
) -> Result<(), PlanError> {
    if model.layers.is_empty() {
        return Err(PlanError::NoLayers(model.name.clone()));
    }
    if workers.is_empty() {
        return Err(PlanError::NoWorkers);
    }
    if workers.len() > MAX_WORKERS {
        return Err(PlanError::TooManyWorkers(workers.len()));
    }
    let positive = |what: String, value: f64| {
        let good = value.is_finite() && value > 0.0;
        if good { Ok(()) } else { Err(PlanError::BadNumber { what, value: value.to_string() }) }
    };
    host_experts::check(model, workers)?;
    for worker in workers {
        positive(format!("gbps of worker {}", worker.name), worker.gbps)?;
        for gops in worker.gops.values() {
            positive(format!("gops of worker {}", worker.name), gops)?;
        }
        if let Some(host) = worker.host {
            positive(format!("gbps of the host of worker {}", worker.name), host.gbps)?;
            for gops in host.gops.values() {
                positive(format!("gops of the host of worker {}", worker.name), gops)?;
            }
        }
        if let Some(link) = worker.link {
            positive(format!("link gbps of worker {}", worker.name), link.gbps)?;
        }
    }
    for (what, value) in [
        ("the context", settings.ctx),
        ("the least context", settings.least_ctx),
        ("the number of sequences", settings.max_seqs),
        ("the KV page", settings.block_positions),
        ("the number of rows in a ubatch", settings.max_rows),
        ("the decode batch", settings.decode_batch),
    ] {
        positive(what.to_owned(), f64::from(value))?;
    }
    Ok(())
}
