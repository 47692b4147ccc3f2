//! Layers `[a, b)` of a model with their state: the unit that a worker runs.
//!
//! A stage takes one [`UBatch`] at a time. It returns the rows for the next stage or, on the last stage, what
//! was wanted of them. The same ubatches in the same order give the same bits on every cut. A stage knows no
//! network and keeps no clock.

mod begun;
mod check;
mod chosen_rows;
mod copies;
mod facts;
mod fingerprint;
mod head;
mod input;
mod kept;
mod layer_rows;
mod layers;
mod load;
mod load_ahead;
mod own_drafts;
mod rehearsal;
mod rope;
mod snapshot;
mod switched;
mod verify;
mod wanted;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub use begun::{Begun, Finished};
pub use check::check_tensors;
pub use kept::KeptWeights;
pub use load::StageConfig;
pub use load_ahead::NextStage;
pub use own_drafts::{DraftRow, check_own_drafts};

use crate::batch::{AdapterUse, Boundary, RowOutput, SeqOp, SeqPart, SlotId, UBatch, Want};
use crate::block::RowAdapters;
use crate::constraint::{Masks, VocabularySource};
use crate::device::{Device, ExpertCounts, Handed, KernelTime, Scratch, UseCounts};
use crate::error::BatchError;
use crate::gguf::adapters::of_model;
use crate::kernels::RopeParams;
use crate::residual::{BoundaryRows, On};
use crate::spec::{ModelSpec, layer_of};
use crate::state::{Applied, LayerPrint, Sequences, StateAction};
use head::Head;
use input::Input;
use layers::LoadedBlock;
use own_drafts::OwnDrafts;

/// Output of a forward pass.
#[derive(Clone, Debug, PartialEq)]
pub enum StageOutput {
    /// Hidden rows for the next stage.
    Boundary(Boundary),
    /// Results that the ubatch's parts wanted, in their order (the last stage).
    Rows(Vec<RowOutput>),
}

/// Memory, device and threads of a loaded stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageFacts {
    /// Bytes of weights as the kernels hold them.
    pub weight_bytes: u64,
    /// Bytes among these of experts in the host's memory beside a GPU: [`StageConfig::host_experts`].
    pub host_expert_bytes: u64,
    /// Bytes of KV pages and recurrent slots.
    pub state_bytes: u64,
    /// Name of the device that computes.
    pub device: String,
    /// Number of compute threads.
    pub threads: usize,
}

/// A loaded range of layers.
pub struct Stage {
    spec: Arc<ModelSpec>,
    n_adapters: usize,
    /// Hash of the metadata and the tensor directory.
    model_hash: blake3::Hash,
    /// Fingerprints of its layers' weights.
    prints: Vec<LayerPrint>,
    /// Names of its tensors.
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
    sequences: Sequences,
    /// Sequences whose next token is still to be drawn, in ubatches that were begun.
    drawing: Vec<SlotId>,
    /// Blocks that draft tokens for sequences, on the last stage.
    own_drafts: Option<OwnDrafts>,
    /// Ubatches that were begun, and have rows that this reads.
    n_reading: usize,
    scratch: Scratch,
}

impl Stage {
    /// Memory, device and threads of the stage.
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

    /// Description of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The layers it runs.
    pub fn layers(&self) -> Range<usize> {
        self.layers.clone()
    }

    /// Number of times that a forward pass had to ask the system for a buffer. It no longer grows once ubatches of the
    /// same size have gone before.
    pub fn n_buffers_grown(&self) -> usize {
        self.scratch.n_grown()
    }

    /// Number of buffers that wait to be used again. It is the same after every ubatch once the stage is warm.
    pub fn n_buffers_spare(&self) -> usize {
        self.scratch.n_spare()
    }

    /// Number of times that the host waited for the GPU; 0 on a CPU.
    pub fn n_waits(&self) -> u64 {
        self.device.counts().waits
    }

    /// Counts of its experts, where a GPU computes; else zeros.
    pub fn expert_counts(&self) -> ExpertCounts {
        self.device.expert_counts()
    }

    /// How often its experts are used; `None` where nothing counts it.
    pub fn use_counts(&self) -> Option<UseCounts> {
        self.device.use_counts()
    }

    /// Work handed to the GPU so far; zeros on a CPU.
    pub fn handed(&self) -> Handed {
        self.device.counts().handed
    }

    /// Time that each kernel of the GPU took since the last call. Empty unless kernels are timed
    /// ([`DeviceOptions::timed`](crate::device::DeviceOptions::timed)).
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

    /// Most tokens that the model's own blocks can draft behind one; 0: this stage has no such blocks.
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

    /// Device and memory for new rows.
    fn on(&self) -> On<'_> {
        On { device: &self.device, scratch: &self.scratch }
    }

    /// The embedded rows of a ubatch, none on a stage that is not the first.
    fn embed(&self, ub: &UBatch, adapters: &RowAdapters) -> BoundaryRows {
        let Some(input) = &self.embedding else { return BoundaryRows::default() };
        let scale = self.spec.embedding_scale;
        let hidden = input.rows(&self.device, &self.scratch, ub, adapters, scale);
        let mut rows = BoundaryRows::stream(hidden);
        input.beside.iter().for_each(|beside| beside.begin(self.on(), ub, &mut rows));
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
