//! The cost of a range of layers on a worker: memory in bytes, and time in microseconds.
//!
//! Time is for one unit of work: one generated token of a stream that is decoded in a batch, and the prompt
//! tokens that come with it.
//!
//! - A decode row costs reading or computing, layer by layer, whichever takes longer. It reads its share of the
//!   weights (which the batch reads together), the KV cache of a typical context, and the state twice.
//! - Operations are those of products, each class of weights at the worker's own speed for it.
//! - A prompt row costs its operations. Its share of reading weights is small. The head computes nothing for
//!   it.
//! - Sending rows to the next worker overlaps with computing, so a stage is as slow as the slower of the two.
//!   In models whose layers keep rows for later ones, what a row sends depends on the cut.

use std::ops::Range;

use brigade_spec::pages_of_rows;
use brigade_worker::copies::store::{ENTRY_BYTES, LAYER_BYTES};
use brigade_worker::copies::{IN_QUEUE_BYTES, QUEUE_BYTES, RESTS_KEPT};
use brigade_worker::machine::memory::PROCESS_BYTES;

use super::facts::{DraftFacts, ModelFacts, WorkerFacts};
use super::keep::KeptRoom;
use super::layer_sums::LayerSums;
use super::layer_time::{LayerTimes, products_us, slower};
use super::{Capacity, Checkpoint, PlanSettings};

/// Bytes of copies that wait to be sent, and of those of a neighbour that have arrived.
const ON_THEIR_WAY: u64 = (QUEUE_BYTES + IN_QUEUE_BYTES) as u64;

/// Tokens that a model's own blocks draft for each token that is drawn: so many at up to eight streams over two workers, by the
/// trained model of the tests. A full line drafts none.
const DRAFTS_A_TOKEN: f64 = 0.5;

/// Bytes that a stage needs, by what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StageMemory {
    /// Layers, embedding and head, but for `host_experts`.
    pub weights: u64,
    /// Routed experts in the host's memory beside a GPU. All else is the GPU's, where it has memory of its own.
    pub host_experts: u64,
    /// Work memory of the host for them, or more where packing the GPU's weights there takes more.
    pub host_scratch: u64,
    /// Bytes of KV pages.
    pub kv: u64,
    /// Bytes of recurrent states.
    pub state: u64,
    /// Copies of states: those that are kept for a neighbour, and the stage's own on their way.
    pub copies: u64,
    /// Work memory, or more where loading takes more than that and states; and the process itself.
    pub scratch: u64,
}

impl StageMemory {
    /// Bytes of both devices together.
    pub fn total(&self) -> u64 {
        self.of_device().saturating_add(self.of_host())
    }

    /// Bytes on the device that computes everything but routed experts.
    pub fn of_device(&self) -> u64 {
        let parts = [self.weights, self.kv, self.state, self.copies, self.scratch];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Bytes on the host beside that device.
    pub fn of_host(&self) -> u64 {
        self.host_experts.saturating_add(self.host_scratch)
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            weights: self.weights.saturating_add(other.weights),
            host_experts: self.host_experts.saturating_add(other.host_experts),
            host_scratch: self.host_scratch.saturating_add(other.host_scratch),
            kv: self.kv.saturating_add(other.kv),
            state: self.state.saturating_add(other.state),
            copies: self.copies.saturating_add(other.copies),
            scratch: self.scratch.saturating_add(other.scratch),
        }
    }
}

/// Microseconds a stage takes for one unit of work, by what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct StageTime {
    /// Microseconds for one generated token.
    pub decode_us: f64,
    /// Microseconds for one prompt token.
    pub prefill_us: f64,
    /// Microseconds of the model's own drafting blocks for a unit of work, where they are used.
    pub drafts_us: f64,
    /// Sending one row on.
    pub send_us: f64,
}

impl StageTime {
    /// The unit of work: whichever is slower, computing or sending. Nothing is drafted.
    pub fn unit_us(&self, settings: &PlanSettings) -> f64 {
        self.computing_us(settings).max(self.sending_us(settings))
    }

    /// The same where the model's own blocks draft.
    pub fn drafting_unit_us(&self, settings: &PlanSettings) -> f64 {
        (self.computing_us(settings) + self.drafts_us).max(self.sending_us(settings))
    }

    /// Computing a unit of work.
    pub fn computing_us(&self, settings: &PlanSettings) -> f64 {
        self.decode_us + settings.prompt_per_generated * self.prefill_us
    }

    /// Sending a unit of work on.
    pub fn sending_us(&self, settings: &PlanSettings) -> f64 {
        (1.0 + settings.prompt_per_generated) * self.send_us
    }

    /// The stage's part of a line's unevenness, as a sum of squares. Computing and sending count separately, so that
    /// among equally fast cuts those that send less are preferred.
    pub(super) fn squares(&self, settings: &PlanSettings) -> f64 {
        self.computing_us(settings).powi(2) + self.sending_us(settings).powi(2)
    }
}

/// Costs of every range of a model's layers on every worker.
pub(super) struct Costs<'a> {
    pub model: &'a ModelFacts,
    pub workers: &'a [WorkerFacts],
    pub settings: &'a PlanSettings,
    /// What is to be kept.
    pub keep: KeptRoom,
    pub(super) sums: LayerSums,
    /// A row's time in the layers, for each worker.
    pub(super) times: Vec<LayerTimes>,
    /// How many times as long the best cut takes where the model's own blocks draft: 1 where there are none.
    pub drafting_slows: f64,
}

impl<'a> Costs<'a> {
    pub fn new(
        model: &'a ModelFacts,
        workers: &'a [WorkerFacts],
        settings: &'a PlanSettings,
    ) -> Self {
        let times = workers.iter().map(|worker| LayerTimes::new(model, settings, worker));
        Self {
            model,
            workers,
            settings,
            keep: KeptRoom::of(settings, model),
            sums: LayerSums::new(model, settings),
            times: times.collect(),
            drafting_slows: 1.0,
        }
    }

    pub fn n_layers(&self) -> usize {
        self.model.layers.len()
    }

    /// Whether a sequence takes memory that does not depend on its length.
    pub fn has_states(&self) -> bool {
        self.sums.has_states()
    }

    /// Bytes of the KV pages that windows of layers `range` need, of all sequences that there is room for.
    fn windows(&self, range: &Range<usize>, capacity: Capacity) -> u64 {
        let windows = self.sums.windows(range);
        let of_rows = windows.page.saturating_mul(pages_of_rows(self.settings.max_rows).into());
        let of_all = windows.of_each.saturating_mul(capacity.n_states()).saturating_add(of_rows);
        of_all.min(windows.page.saturating_mul(capacity.n_blocks.into()))
    }

    /// Memory of layers `range` as a stage.
    pub fn memory(&self, range: &Range<usize>, capacity: Capacity) -> StageMemory {
        let (model, settings) = (self.model, self.settings);
        let (first, last) = (range.start == 0, range.end == self.n_layers());
        let embedding = if first { model.embedding_bytes } else { 0 };
        let head = if last { model.head_bytes } else { 0 };
        let positions = u64::from(capacity.n_blocks) * u64::from(settings.block_positions);
        let windows = self.windows(range, capacity);
        let drafts = if last { model.drafts } else { DraftFacts::default() };
        let kv = self.sums.kv(range).saturating_add(drafts.kv_bytes).saturating_mul(positions);
        let weights = [embedding, head, drafts.weight_bytes];
        let kv = kv.saturating_add(windows);
        let state = self.sums.state(range).saturating_add(drafts.state_bytes);
        let state = state.saturating_mul(capacity.n_states());
        // While a tensor is loaded, all of this is not there yet.
        let loading = model.loading.bytes(last).saturating_sub(kv.saturating_add(state));
        StageMemory {
            weights: weights
                .into_iter()
                .fold(self.sums.weights(range, &(0..0)), u64::saturating_add),
            kv,
            copies: self.copies(range, capacity),
            state,
            scratch: PROCESS_BYTES.saturating_add(self.work_memory(last).max(loading)),
            host_experts: 0,
            host_scratch: 0,
        }
    }

    /// Bytes that a ubatch's rows take while they are computed.
    pub fn work_memory(&self, is_last: bool) -> u64 {
        let logits = if is_last { self.model.logits_bytes } else { 0 };
        let per_row = self.model.scratch_bytes_per_row.saturating_add(logits);
        per_row.saturating_mul(self.settings.max_rows.into())
    }

    /// Memory for copies of the states of layers `range`. A stage keeps its neighbour's copies, which are assumed to
    /// be as large as its own; larger ones are not kept.
    fn copies(&self, range: &Range<usize>, capacity: Capacity) -> u64 {
        let (n_slots, n_pages) = (u64::from(capacity.n_slots), u64::from(capacity.n_blocks));
        let page = self.sums.kv(range).saturating_mul(self.settings.block_positions.into());
        let pages = page.saturating_mul(n_pages);
        // One more than stay: the oldest goes when the next is whole.
        let n_rests = n_slots.saturating_mul(RESTS_KEPT as u64) + 1;
        let window = self.sums.windows(range).of_each;
        let own = self.sums.state(range).saturating_add(window).saturating_mul(n_rests);
        // A position that is not at a page's end has the beginning of that page too.
        let begun = if self.has_states() { page.saturating_mul(n_rests) } else { 0 };
        let n_layers = range.len() as u64;
        let entries = ENTRY_BYTES.saturating_mul(n_pages.saturating_add(n_rests));
        let tables = n_layers.saturating_mul(LAYER_BYTES.saturating_mul(n_slots) + 2 * entries);
        match self.settings.checkpoint {
            Checkpoint::Off => 0,
            Checkpoint::Disk => own.saturating_add(tables).saturating_add(QUEUE_BYTES as u64),
            Checkpoint::Buddy => [pages, begun, own, own, tables, tables, ON_THEIR_WAY]
                .into_iter()
                .fold(0, u64::saturating_add),
        }
    }

    /// Bytes of weights that a worker must load to have layers `range`: those that are not in its memory.
    pub fn loads(&self, worker: usize, range: &Range<usize>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let (model, holds) = (self.model, &self.workers[worker].holds);
        let has = !holds.is_empty();
        let first = range.start == 0 && !(has && holds.start == 0);
        let last = range.end == self.n_layers() && !(has && holds.end == self.n_layers());
        self.sums
            .weights(range, holds)
            .saturating_add(if first { model.embedding_bytes } else { 0 })
            .saturating_add(if last { model.head_bytes + model.drafts.weight_bytes } else { 0 })
    }

    /// Memory of the whole model over `stages` stages, each with its process and work memory.
    pub fn memory_over(&self, stages: usize, capacity: Capacity) -> u64 {
        let (rows, n_layers) = (u64::from(self.settings.max_rows), self.n_layers());
        let each = PROCESS_BYTES + self.model.scratch_bytes_per_row.saturating_mul(rows);
        let more = (stages.clamp(1, n_layers.max(1)) - 1) as u64;
        self.memory(&(0..n_layers), capacity).total().saturating_add(each.saturating_mul(more))
    }

    /// A unit of work's time in the blocks of drafts: all its rows are remembered there, and behind some a token is drafted, with
    /// a head of its own.
    pub(super) fn drafts_us(&self, worker: usize) -> f64 {
        let (drafts, worker_facts) = (&self.model.drafts, &self.workers[worker]);
        if drafts.weight_bytes == 0 {
            return 0.0;
        }
        let read = drafts.weight_bytes as f64 / f64::from(self.settings.decode_batch);
        let block = slower(read, drafts.elements, worker_facts);
        let entry = drafts.entry_share() * products_us(drafts.elements, worker_facts.gops);
        let entries = (1.0 + self.settings.prompt_per_generated) * entry;
        entries + DRAFTS_A_TOKEN * (block + self.head_us(worker))
    }

    /// A generated token's time in the head.
    pub fn head_us(&self, worker: usize) -> f64 {
        let read = self.model.head_bytes as f64 / f64::from(self.settings.decode_batch);
        slower(read, self.model.head_elements, &self.workers[worker])
    }
}
