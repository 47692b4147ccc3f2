//! Layers `[a, b)` of a model with their state: the unit that a worker runs.
//!
//! A stage takes one [`UBatch`] at a time. It returns the rows for the next stage or, on the last stage, what
//! was wanted of them. The same ubatches in the same order give the same bits on every cut. A stage knows no
//! network and keeps no clock.

mod begun;
mod block_input;
mod boundary_rows;
mod check;
mod chosen_rows;
mod copies;
mod facts;
mod fingerprint;
mod gated_streams;
mod head;
mod hyper;
mod input;
mod kept;
mod layer_rows;
mod load;
mod load_ahead;
mod norm;
mod own_drafts;
mod rehearsal;
mod rope;
mod snapshot;
mod streams;
mod switched;
mod verify;
mod wanted;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

pub use begun::{Begun, Finished};
pub use check::check_tensors;
pub use kept::KeptWeights;
pub use load::StageConfig;
pub use load_ahead::NextStage;
pub use own_drafts::{DraftRow, check_own_drafts};

use crate::batch::{AdapterUse, Boundary, RowOutput, SeqOp, SeqPart, SlotId, UBatch, Want};
use crate::block::{Block, BlockCx, RowAdapters};
use crate::constraint::{Masks, VocabularySource};
use crate::device::{Device, ExpertCounts, Handed, KernelTime, Rows, Scratch};
use crate::error::BatchError;
use crate::gguf::adapters::of_model;
use crate::kernels::{RopeParams, RopeTable, Vector};
use crate::spec::{Beside, BlockSpec, ModelSpec, PassEnd, Reads, layer_of};
use crate::state::{Applied, BlockState, LayerPrint, PartRows, Sequences, StateAction};
use block_input::BlockInput;
use boundary_rows::BoundaryRows;
use head::Head;
use input::Input;
use norm::Norm;
use own_drafts::OwnDrafts;
use switched::OwnAdapters;

/// What a forward pass returns.
#[derive(Clone, Debug, PartialEq)]
pub enum StageOutput {
    /// Hidden rows for the next stage.
    Boundary(Boundary),
    /// What the ubatch's parts wanted, in their order (the last stage).
    Rows(Vec<RowOutput>),
}

/// What a loaded stage takes and uses.
#[derive(Clone, Debug, PartialEq)]
pub struct StageFacts {
    /// Bytes of weights as the kernels hold them.
    pub weight_bytes: u64,
    /// Of these, bytes of experts in the host's memory beside a GPU: [`StageConfig::host_experts`].
    pub host_expert_bytes: u64,
    /// Bytes of KV pages and recurrent slots.
    pub state_bytes: u64,
    /// Name of the device that computes.
    pub device: String,
    /// Compute threads.
    pub threads: usize,
}

/// A loaded range of layers.
pub struct Stage {
    spec: Arc<ModelSpec>,
    n_adapters: usize,
    /// Of the metadata and the tensor directory.
    model_hash: blake3::Hash,
    /// Of its layers' weights.
    prints: Vec<LayerPrint>,
    /// Of its tensors.
    names: kept::Names,
    layers: Range<usize>,
    config: StageConfig,
    facts: StageFacts,
    device: Device,
    embedding: Option<Input>,
    blocks: Vec<LoadedBlock>,
    head: Option<Head>,
    rope: Option<RopeParams>,
    local_rope: Option<RopeParams>,
    /// Of the stream behind the last layer of a pass, where one ends so in this stage.
    pass_norm: Option<Norm>,
    sequences: Sequences,
    /// Sequences whose next token is still to be drawn, in ubatches that were begun.
    drawing: Vec<SlotId>,
    /// What drafts tokens for sequences, on the last stage.
    own_drafts: Option<OwnDrafts>,
    /// Ubatches that were begun, and have rows that this reads.
    n_reading: usize,
    scratch: Scratch,
}

/// One residual block, ready to run.
struct LoadedBlock {
    layer: usize,
    /// Place within its layer.
    index: usize,
    spec: BlockSpec,
    weights: Arc<BlockWeights>,
    /// Whether the stream is kept as it is, and goes on as the block's output.
    restarts: bool,
    state: BlockState,
    /// Of a layer's last block: what is added to the stream behind the layer, `[n_embd]`.
    control_vector: Option<Vector>,
    /// Of a layer's last block: what becomes of the stream behind that.
    pass_end: Option<PassEnd>,
}

/// What a block computes with. Layers that are one layer of the file share it.
struct BlockWeights {
    /// `None` where the block reads what the one before it read.
    read: Option<BlockInput>,
    /// A norm of the block's output.
    post_norm: Option<Norm>,
    /// Multiplies the stream after the block.
    stream_factor: Option<f32>,
    /// Times this, the embedded rows are added after the block.
    skip: Option<f32>,
    /// A norm of the stream after the block; and one of what it gives and the stream as it came.
    stream_norms: [Option<Norm>; 2],
    block: Box<dyn Block>,
}

impl Stage {
    /// What the stage takes and uses.
    pub fn facts(&self) -> &StageFacts {
        &self.facts
    }

    /// Names of the tensors that each layer computes with and that belong to layers of the file.
    pub fn layer_tensors(&self) -> BTreeMap<usize, Vec<String>> {
        let is_inside = |name: &&String| layer_of(of_model(name).0).is_some();
        let of_layer = |(layer, (names, _)): (&usize, &(Vec<String>, blake3::Hash))| {
            (*layer, names.iter().filter(is_inside).cloned().collect())
        };
        self.names.layers.iter().map(of_layer).collect()
    }

    /// The model's description.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The layers it runs.
    pub fn layers(&self) -> Range<usize> {
        self.layers.clone()
    }

    /// How often a forward pass had to ask the system for a buffer so far: it stays where it is once
    /// ubatches of the same size have gone before.
    pub fn n_buffers_grown(&self) -> usize {
        self.scratch.n_grown()
    }

    /// How many buffers wait to be used again: the same number after every ubatch once the stage is warm.
    pub fn n_buffers_spare(&self) -> usize {
        self.scratch.n_spare()
    }

    /// How often the host waited for the GPU so far; 0 on a CPU.
    pub fn n_waits(&self) -> u64 {
        self.device.counts().waits
    }

    /// What its experts did so far, where a GPU computes.
    pub fn expert_counts(&self) -> ExpertCounts {
        self.device.expert_counts()
    }

    /// What the GPU was handed so far; nothing on a CPU.
    pub fn handed(&self) -> Handed {
        self.device.counts().handed
    }

    /// What each kernel of the GPU took since this was last asked; nothing unless it is timed
    /// ([`GpuOptions::timed`](crate::device::GpuOptions::timed)).
    pub fn kernel_times(&self) -> Vec<KernelTime> {
        self.device.kernel_times()
    }

    /// Kernels of the GPU that are compiled by now; 0 on a CPU.
    pub fn n_kernels(&self) -> usize {
        self.device.counts().n_kernels
    }

    /// Whether the host's cores compute, also where they pass for a GPU.
    pub fn is_on_cores(&self) -> bool {
        self.device.is_on_cores()
    }

    /// Sequences it holds now.
    pub fn n_open(&self) -> usize {
        self.sequences.n_open()
    }

    /// Forgets every sequence, as after loading. Its pages and slots are cleared when they are next
    /// given to one.
    pub fn reset(&mut self) {
        self.sequences.clear();
        self.drawing.clear();
        self.blocks.iter_mut().for_each(|block| block.state.clear());
        if let Some(head) = &mut self.head {
            head.clear();
        }
        self.n_reading = 0;
        self.own_drafts.iter_mut().for_each(OwnDrafts::clear);
    }

    /// How many tokens the model's own blocks can draft behind one; 0: there are none here.
    pub fn own_drafts(&self) -> u32 {
        self.own_drafts.as_ref().map_or(0, |drafts| drafts.depth() as u32)
    }

    /// Keeps the logits of all rows that blocks of drafts read and draft from here on, or no longer. Returns those that were kept
    /// since it was last told. For who compares them with another program's: it costs the head for each row.
    pub fn watch_own_drafts(&mut self, is_on: bool) -> Vec<DraftRow> {
        self.own_drafts.as_mut().map_or_else(Vec::new, |drafts| drafts.watch(is_on))
    }

    /// The entries that the model's own blocks of drafts have of the rows of a sequence, and their positions; `None`: none, or
    /// it is not read. They are in no snapshot: this is for who compares them.
    pub fn own_draft_entries(&self, slot: SlotId) -> Option<(Range<u32>, Vec<Vec<u8>>)> {
        self.own_drafts.as_ref()?.entries(&self.sequences, slot)
    }

    /// Tells where the tokens' texts are, which grammars of answers need; they are read when the first one comes.
    pub fn set_vocabulary(&mut self, source: VocabularySource) {
        if let Some(head) = &mut self.head {
            head.masks = Masks::new(source);
        }
    }

    /// The embedded rows of a ubatch, none on a stage that is not the first.
    fn embed(&self, ub: &UBatch, adapters: &RowAdapters) -> BoundaryRows {
        let Some(input) = &self.embedding else { return BoundaryRows::default() };
        let tools = (&self.device, &self.scratch);
        let (device, scratch, scale) = (&self.device, &self.scratch, self.spec.embedding_scale);
        let copy_of = |rows: &Rows| scratch.copy_of(rows);
        let mut rows = BoundaryRows::stream(input.rows(device, scratch, ub, adapters, scale));
        if let Some(low) = &input.low_start {
            rows.beside.push(copy_of(&rows.hidden));
            self.device.add_bias(&mut rows.hidden, low);
        }
        rows.beside.extend(input.switched_on(ub));
        match self.spec.skeleton.beside {
            Beside::Embedding => rows.beside.push(copy_of(&rows.hidden)),
            Beside::ForLayers { lent, .. } => {
                let hidden = &rows.hidden;
                let of_layers =
                    input.layer_rows.as_ref().map(|l| l.rows(device, scratch, ub, hidden));
                let streams = input.streams.as_ref().map(|s| s.of(tools, hidden));
                rows.beside.push(of_layers.unwrap_or_default());
                // Filled by the layers that lend them.
                rows.beside.resize_with(Beside::streams(lent), Rows::default);
                rows.beside.extend(streams.unwrap_or_default());
            }
            Beside::Nothing | Beside::FirstValue | Beside::Chosen | Beside::Adapters => {}
        }
        let others = 1..self.spec.skeleton.residual.n_streams();
        if !others.is_empty() {
            rows.beside = others.map(|_| copy_of(&rows.hidden)).collect();
        }
        rows
    }

    /// Refuses a ubatch whose rows do not fit, before any sequence is touched.
    fn check(&self, ub: &UBatch, input: Option<&Boundary>) -> Result<(), BatchError> {
        let n_rows = ub.n_rows();
        if n_rows > self.config.max_rows {
            return Err(BatchError::Malformed(format!(
                "{n_rows} rows, the stage was loaded for at most {}",
                self.config.max_rows
            )));
        }
        let n_vocab = self.spec.n_vocab;
        let tokens = ub.parts.iter().flat_map(|p| &p.tokens);
        if let Some(&token) = tokens.into_iter().find(|&&t| t as usize >= n_vocab) {
            return Err(BatchError::NoSuchToken { token, n_vocab });
        }
        let n_positions = self.spec.max_positions().unwrap_or(u32::MAX);
        let beyond = |p: &&SeqPart| u64::from(p.pos) + p.tokens.len() as u64 > n_positions.into();
        if let Some(part) = ub.parts.iter().find(beyond) {
            return Err(BatchError::NoSuchPosition { slot: part.slot, n_positions });
        }
        if self.spec.is_encoder() {
            check_texts(ub)?;
        }
        ub.ops.iter().try_for_each(|op| self.check_adapters(op))?;
        match (self.embedding.is_some(), input) {
            (true, None) => Ok(()),
            (true, Some(_)) => Err(BatchError::Boundary("the first stage takes no rows".into())),
            (false, None) if n_rows == 0 => Ok(()),
            (false, None) => Err(BatchError::Boundary(format!("{n_rows} rows are missing"))),
            (false, Some(input)) => {
                let width = self.spec.boundary(self.layers.start).width();
                if input.n_rows != n_rows || input.data.len() != n_rows * width {
                    return Err(BatchError::Boundary(format!(
                        "{} rows of {} values for a ubatch of {n_rows} rows of {width}",
                        input.n_rows,
                        input.data.len()
                    )));
                }
                if let Some(switch) = &self.spec.skeleton.switch {
                    switched::check(switch, input)?;
                }
                match self.spec.chosen_before(self.layers.start) {
                    Some(sizes) => chosen_rows::check(sizes, ub, input),
                    None => Ok(()),
                }
            }
        }
    }

    /// Refuses adapters that the model does not have, and scales that are none.
    fn check_adapters(&self, op: &SeqOp) -> Result<(), BatchError> {
        let SeqOp::Adapt { slot, adapters } = op else { return Ok(()) };
        let is_bad =
            |u: &&AdapterUse| u.adapter as usize >= self.n_adapters || !u.scale.is_finite();
        match adapters.iter().find(is_bad) {
            Some(bad) => Err(BatchError::Malformed(format!(
                "slot {}: adapter {} with scale {}, the stage was loaded with {} adapters",
                slot.0, bad.adapter, bad.scale, self.n_adapters
            ))),
            None => Ok(()),
        }
    }

    /// Blocks up to the last that mixes rows, and up to the last of its layer that reads what was there
    /// before it.
    fn n_mixing(&self) -> usize {
        let Some(last) = self.blocks.iter().rposition(|b| b.spec.kind.mixes_rows()) else {
            return 0;
        };
        let rest = self.blocks[last + 1..].iter();
        let of_layer = rest.take_while(|b| b.layer == self.blocks[last].layer);
        let of_layer: Vec<_> = of_layer.map(|b| &b.spec).collect();
        let beside = of_layer.iter().take_while(|b| b.reads == Reads::AsBefore).count();
        let is_early = |b: &&BlockSpec| b.reads == Reads::LayerInput || b.kind.reads_layer_input();
        let early = of_layer.iter().rposition(is_early).map_or(0, |i| i + 1);
        last + 1 + beside.max(early)
    }

    /// Makes the state follow the ubatch's ops.
    fn run_actions(&mut self, applied: &Applied) {
        for action in &applied.actions {
            for block in &mut self.blocks {
                match action {
                    StateAction::Zero(slot) => block.state.zero(*slot),
                    StateAction::Copy(copy) => block.state.copy(copy),
                    StateAction::CopySlot { from, to } => block.state.copy_slot(*from, *to),
                }
            }
        }
    }

    /// What later blocks of the layer that begins with block `first` read of its input, in their order.
    fn read_early(&self, first: usize, rows: &BoundaryRows, early: &mut VecDeque<Rows>) {
        let of_layer =
            self.blocks[first..].iter().take_while(|b| b.layer == self.blocks[first].layer);
        for block in of_layer.filter(|b| b.spec.reads == Reads::LayerInput) {
            let mut input = self.scratch.take(rows.hidden.n_rows(), rows.hidden.cols());
            if let Some(read) = &block.weights.read {
                read.apply((&self.device, &self.scratch), rows, &mut input);
            }
            early.push_back(input);
        }
    }

    /// Runs a range of residual blocks over `n_rows` rows in place. Parts and tokens are empty where none of the blocks
    /// mixes rows.
    fn run_blocks(
        &mut self,
        range: Range<usize>,
        (parts, tokens, adapters): (&[PartRows], &[u32], &RowAdapters),
        n_rows: usize,
        rows: &mut BoundaryRows,
    ) {
        if n_rows == 0 {
            return;
        }
        let rope = rope_table(&self.device, self.rope.as_ref(), parts);
        let local_rope = rope_table(&self.device, self.local_rope.as_ref(), parts);
        let n_embd = self.spec.n_embd;
        let mut normed = self.scratch.take(n_rows, n_embd);
        // What later blocks of a layer read of its input, in their order.
        let mut early = VecDeque::new();
        let keeps_input =
            self.blocks[range.clone()].iter().any(|b| b.spec.kind.reads_layer_input());
        let mut own = OwnAdapters::new(self.spec.skeleton.beside, adapters);
        let mut layer_input = self.scratch.take(if keeps_input { n_rows } else { 0 }, n_embd);
        for i in range {
            if self.blocks[i].index == 0 {
                self.read_early(i, rows, &mut early);
                if keeps_input {
                    layer_input.set(&rows.hidden);
                }
            }
            let block = &mut self.blocks[i];
            let adapters = own.of(&block.spec.kind, rows);
            let weights = &block.weights;
            let mut spread = None;
            match (block.spec.reads, &weights.read) {
                (Reads::LayerInput, _) => {
                    normed = early.pop_front().expect("made at the layer's first block");
                }
                (_, Some(read)) => {
                    spread = read.apply((&self.device, &self.scratch), rows, &mut normed);
                }
                (_, None) => {}
            }
            let came = weights.stream_norms[1].as_ref().map(|_| self.scratch.copy_of(&rows.hidden));
            let mut cx = BlockCx {
                device: &self.device,
                parts,
                tokens,
                sequences: &self.sequences,
                rope: rope.as_ref(),
                local_rope: local_rope.as_ref(),
                layer_input: &layer_input,
                beside: &mut rows.beside,
                adapters,
                scratch: &self.scratch,
            };
            let mut out = weights.block.forward(&mut cx, &mut block.state, &normed);
            if let Some(norm) = &weights.post_norm {
                norm.apply_inplace(&self.device, &mut out);
            }
            if let Some(spread) = spread {
                spread.add((&self.device, &self.scratch), &out, rows);
            } else if block.restarts {
                rows.restart(out);
            } else {
                block.add(&self.device, (&out, &normed), came.as_ref(), rows);
            }
            let n_streams = self.spec.skeleton.residual.n_streams();
            block.end(&self.device, (n_streams, self.pass_norm.as_ref()), rows);
        }
    }
}

impl BlockWeights {
    /// Bytes of all matrices.
    fn nbytes(&self) -> u64 {
        self.block.nbytes() as u64 + self.read.as_ref().map_or(0, BlockInput::nbytes) as u64
    }
}

impl LoadedBlock {
    /// Does with the streams, so many of them, what comes behind its layer, if it is the last block of that.
    fn end(
        &self,
        device: &Device,
        (n_streams, pass_norm): (usize, Option<&Norm>),
        rows: &mut BoundaryRows,
    ) {
        if let Some(vector) = &self.control_vector {
            rows.streams_mut(n_streams).for_each(|stream| device.add_bias(stream, vector));
        }
        if let (Some(end), Some(norm)) = (self.pass_end, pass_norm) {
            rows.end_pass(device, norm, end);
        }
    }

    /// Adds what it gave, `out` `[n_rows, n_embd]`, to the stream, and does with that what comes behind the block, which
    /// read the rows `normed`; the stream `came` so to it.
    fn add(
        &self,
        device: &Device,
        (out, normed): (&Rows, &Rows),
        came: Option<&Rows>,
        rows: &mut BoundaryRows,
    ) {
        if let Some(scale) = self.spec.goes_on_from_norm {
            rows.hidden.set(normed);
            device.scale(&mut rows.hidden, scale);
        }
        device.add_scaled(&mut rows.hidden, out, self.spec.residual_scale);
        if self.spec.stream_scale != 1.0 {
            device.scale(&mut rows.hidden, self.spec.stream_scale);
        }
        let weights = &self.weights;
        if let Some(factor) = weights.stream_factor {
            device.scale(&mut rows.hidden, factor);
        }
        if let Some(factor) = weights.skip {
            device.add_scaled(&mut rows.hidden, &rows.beside[0], factor);
        }
        let [stream_norm, again_norm] = &weights.stream_norms;
        if let Some(norm) = stream_norm {
            norm.apply_inplace(device, &mut rows.hidden);
        }
        if let (Some(norm), Some(came)) = (again_norm, came) {
            device.add(&mut rows.hidden, came);
            norm.apply_inplace(device, &mut rows.hidden);
        }
    }
}

/// Refuses parts that an encoder cannot compute: it reads whole texts, and has no logits.
fn check_texts(ub: &UBatch) -> Result<(), BatchError> {
    if let Some(part) = ub.parts.iter().find(|part| part.pos > 0) {
        let SeqPart { slot, pos, .. } = part;
        return Err(BatchError::Malformed(format!(
            "slot {}: a part at position {pos}, an encoder takes a text in one part",
            slot.0
        )));
    }
    let has_logits =
        |want| matches!(want, Want::Sample | Want::Verify | Want::Companion | Want::Logits);
    match ub.parts.iter().find(|part| has_logits(part.want)) {
        Some(part) => Err(BatchError::Malformed(format!(
            "slot {}: an encoder has no tokens and no logits, its rows can be asked for",
            part.slot.0
        ))),
        None => Ok(()),
    }
}

/// Sines and cosines for the positions of a ubatch.
fn rope_table(device: &Device, rope: Option<&RopeParams>, parts: &[PartRows]) -> Option<RopeTable> {
    let rope = rope.filter(|_| !parts.is_empty())?;
    let positions: Vec<u32> =
        parts.iter().flat_map(|p| p.pos..p.pos + p.rows.len() as u32).collect();
    Some(RopeTable::new(device.host(), rope, &positions))
}
