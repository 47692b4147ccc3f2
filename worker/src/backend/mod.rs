//! The engine's interface to the worker: an engine, the stages that it builds, and what options say of an engine. These
//! are traits, so that lanes, loading and caching can be tested with a stage that only adds. The real engine is behind
//! them in the module `stage`.

pub mod expert_placement;
pub mod measure;
pub mod product_class;
pub mod visiting_experts;
pub mod work_memory;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use blake3::Hash;
use brigade_engine::batch::{Boundary, PageId, SlotId, UBatch};
use brigade_engine::device::ExpertCounts;
use brigade_engine::error::{BatchError, SnapshotError};
pub use brigade_engine::stage::{KeptWeights, StageOutput};
use brigade_engine::state::{
    BlockCopy, BlockPart, BlockSize, BlockSource, CopyOf, CopyRoom, LayerPrint, StageCopy, Written,
};
use brigade_gguf::Gguf;
use brigade_proto::control::{KvType, StageSpec};
use brigade_proto::failure::Failure;

use crate::machine::memory;
use crate::machine::turns::Turn;
use crate::weights::reader::Weights;
use measure::{Sending, Speeds};

/// The models that an engine can run on this machine, and its measured speed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Abilities {
    /// Names of architectures, as in `general.architecture`.
    pub architectures: Vec<String>,
    /// GGUF tensor type names.
    pub quant_types: Vec<String>,
    /// Types of KV cache values.
    pub kv_types: Vec<KvType>,
    /// Op tables this CPU runs, best first.
    pub kernel_tables: Vec<String>,
    /// The number of what each of these computes.
    pub kernel_numerics: Vec<u32>,
    /// The one used by default.
    pub kernels: String,
    /// Compute threads used by default.
    pub threads: u32,
    /// How fast its device is with all threads.
    pub speeds: Speeds,
    /// The host beside a GPU, where routed experts may lie in its memory.
    pub host: Option<HostAbility>,
}

/// The host beside a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostAbility {
    /// How fast it is.
    pub speeds: Speeds,
    /// The way of experts to the GPU, as it was measured.
    pub sent: Sending,
    /// The number of first layers whose experts lie here: see `HostPart` of the protocol.
    pub experts_before: Option<u32>,
}

/// The tensors and the memory of a stage, computed from the model's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageNeeds {
    /// Names of exactly the tensors it reads.
    pub tensors: Vec<String>,
    /// Bytes of weights in the stage's memory.
    pub weight_bytes: u64,
    /// Bytes that experts beside a GPU take of the host's memory, with their work memory, or more while the GPU's weights are
    /// packed there; where both are one memory they are in `weight_bytes` too.
    pub host_bytes: u64,
    /// Bytes of KV pages, slots and scratch.
    pub state_bytes: u64,
    /// Bytes beside its weights while they are loaded. States and scratch take their place later.
    pub loading_bytes: u64,
}

impl StageNeeds {
    /// Bytes where the stage lies, while it is loaded and afterwards.
    pub fn stage_bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.state_bytes.max(self.loading_bytes))
    }
}

/// A stage to be built.
pub struct BuildOrder {
    /// Metadata and tensor directory.
    pub model: Arc<Gguf>,
    /// Source of the tensors' bytes.
    pub weights: Arc<Weights>,
    /// The layers of the stage and its limits.
    pub spec: StageSpec,
    /// The memory beside it.
    pub left: Left,
    /// Called with the bytes of each tensor as it is taken.
    pub progress: Box<dyn FnMut(u64) + Send>,
}

/// What a stage leaves of its worker's memory, where stages lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Bytes that nothing needs while it is there.
    pub bytes: u64,
    /// All bytes that the worker may take.
    pub limit: u64,
}

/// The memory and the settings of a built stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuiltFacts {
    /// Bytes of weights in the stage's memory.
    pub weight_bytes: u64,
    /// Bytes of experts in the host's memory beside a GPU; where both are one memory they are in `weight_bytes` too.
    pub host_bytes: u64,
    /// Bytes of sequence state.
    pub state_bytes: u64,
    /// Bytes beside both that copies of experts may take. No plan knows them.
    pub copies_bytes: u64,
    /// Bytes of state that one sequence has at most: its slot, and pages for all its positions.
    pub sequence_bytes: u64,
    /// Op table in use.
    pub kernels: String,
    /// Compute threads in use.
    pub threads: u32,
    /// Names of the tensors that each of its layers computes with and that belong to layers. Several layers may have the
    /// same.
    pub layer_tensors: BTreeMap<usize, Vec<String>>,
}

/// An engine that builds stages.
pub trait StageBackend: Send + Sync + 'static {
    /// The models that it can run here, and how fast.
    fn abilities(&self) -> &Abilities;

    /// Whether stages lie elsewhere than in the host's memory.
    fn has_own_memory(&self) -> bool {
        false
    }

    /// Bytes free now where stages lie, the host's memory or a GPU's; `None` where that cannot be known.
    fn free_bytes(&self) -> Option<u64> {
        memory::available_bytes()
    }

    /// The tensors and the memory of a stage of this model. Reads metadata and directory only.
    ///
    /// # Errors
    /// Unsupported, naming the part of the order that cannot be run.
    fn needs(&self, model: &Gguf, spec: &StageSpec) -> Result<StageNeeds, Failure>;

    /// Builds a stage, on the thread that will own it. Weights that are in `kept` are the order's, and are not
    /// read again; those that it has loaded when it fails stay there.
    ///
    /// # Errors
    /// Unsupported, NoMemory or Corrupt, with the reason.
    fn build(
        &self,
        order: BuildOrder,
        kept: &mut KeptWeights,
    ) -> Result<(Box<dyn StageRunner>, BuiltFacts), Failure>;

    /// Loads weights for the next stage, apart from those of the layers `has` that the present stage already has. The
    /// present stage goes on computing, so this takes one thread only.
    ///
    /// # Errors
    /// As [`StageBackend::build`].
    fn load_ahead(&self, order: BuildOrder, has: Range<usize>) -> Result<KeptWeights, Failure>;

    /// Writes what the stage has learned and the next start is to know. Called once the process is about to end. Blocks.
    fn write_records(&self) {}
}

/// Why a stage could not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct StageError {
    /// The slot at fault, where there is one.
    pub slot: Option<u32>,
    /// The error, in words.
    pub reason: String,
    /// Whether the stage's device failed, and with it all that the stage had: it cannot be used again.
    pub lost: bool,
}

impl From<BatchError> for StageError {
    fn from(error: BatchError) -> Self {
        Self {
            slot: error.slot().map(|slot| slot.0),
            reason: error.to_string(),
            lost: matches!(error, BatchError::Device(_)),
        }
    }
}

impl From<String> for StageError {
    fn from(reason: String) -> Self {
        Self { slot: None, reason, lost: false }
    }
}

impl From<&str> for StageError {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

/// Sizes at a stage's two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageShape {
    /// f32 values of an incoming boundary row; `None` on the first stage.
    pub input_width: Option<u32>,
    /// f32 values of an outgoing boundary row; `None` on the last stage.
    pub output_width: Option<u32>,
    /// Whether outgoing rows must not be rounded on their way.
    pub output_exact: bool,
    /// Tokens of the vocabulary.
    pub n_vocab: u32,
}

/// Properties of a stage on which copies of its states depend.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyFacts {
    /// Model, cache type and numerics.
    pub kind: String,
    /// Layers of the stage.
    pub layers: Range<u32>,
    /// Fingerprints of their weights, in order.
    pub prints: Vec<Hash>,
    /// Whether it has recurrent states.
    pub has_slots: bool,
}

/// The result of a ubatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The output for the next stage, or for the coordinator.
    pub output: StageOutput,
    /// The part of the time that went into the model's own drafts.
    pub drafting: Duration,
    /// The part of the time in which another stage of this machine had its turn.
    pub waited: Duration,
}

impl Finished {
    /// A ubatch without drafts.
    pub fn without_drafts(output: StageOutput) -> Self {
        Self { output, drafting: Duration::ZERO, waited: Duration::ZERO }
    }
}

/// Says where a layer's block is to be had.
pub type FindSource<'a, 'b> = &'b dyn Fn(&LayerPrint, u32) -> Option<BlockSource<'a>>;

/// Finds the part of a block's state that is to be written: by the layer, and the block's place in it.
pub type FindPart<'a, 'b> = &'b dyn Fn(&LayerPrint, u32) -> Option<BlockPart<'a>>;

/// A loaded stage: layers and the state of their sequences. It is built, used and dropped on the
/// executor's thread.
pub trait StageRunner {
    /// Sizes at its two ends.
    fn shape(&self) -> StageShape;

    /// Whether a ubatch can be begun before those are finished that were begun.
    fn may_begin(&self, _ubatch: &UBatch) -> bool {
        true
    }

    /// Waits until no other stage of this machine computes, where they take turns. The other stages wait until the
    /// returned turn is dropped.
    fn take_turn(&mut self) -> Option<Turn> {
        None
    }

    /// Whether a ubatch is still computed when [`StageRunner::begin`] has returned, as on a GPU: the turn then lasts until it is
    /// finished.
    fn computes_on(&self) -> bool {
        false
    }

    /// Applies the ubatch's operations and begins to compute its parts, behind those that were begun before.
    ///
    /// # Errors
    /// The sequences' states may no longer agree with those of other stages: the lane ends.
    fn begin(&mut self, ubatch: &UBatch, input: Option<Boundary>) -> Result<(), StageError>;

    /// Counts of rows that routed experts computed, and where; since loading.
    fn expert_counts(&self) -> ExpertCounts {
        ExpertCounts::default()
    }

    /// Waits for so long at most; whether the first ubatch that was begun and not finished is computed, or failed.
    fn is_done_within(&mut self, within: Duration) -> bool;

    /// Waits for the first ubatch that was begun and not finished, and returns its results.
    ///
    /// # Errors
    /// As [`StageRunner::begin`].
    fn finish(&mut self) -> Result<Finished, StageError>;

    /// The state of an open sequence.
    ///
    /// # Errors
    /// The slot is not open.
    fn snapshot(&self, slot: u32) -> Result<Vec<u8>, SnapshotError>;

    /// Gives an open sequence the state of a snapshot.
    ///
    /// # Errors
    /// The snapshot or the slot does not fit; nothing has changed.
    fn restore(&mut self, slot: u32, bytes: &[u8]) -> Result<(), SnapshotError>;

    /// Forgets every sequence, as after loading.
    ///
    /// # Errors
    /// The stage cannot be used again.
    fn reset(&mut self) -> Result<(), StageError>;

    /// Takes its weights out, for the next stage that is built; its sequences are gone.
    fn into_kept(self: Box<Self>) -> KeptWeights;

    /// Properties on which copies of its states depend; `None`: it cannot copy any.
    fn copy_facts(&self) -> Option<CopyFacts> {
        None
    }

    /// Pages and positions of an open sequence.
    fn places(&self, _slot: u32) -> Option<(Vec<PageId>, u32)> {
        None
    }

    /// Copies a sequence's state at position `len`, without its first `first_page` pages, as far as there is room.
    /// The recurrent states at that position are in the place `plane` of another slot, if one is named.
    ///
    /// # Errors
    /// The sequence has no state at that position.
    fn copy_new(
        &self,
        _slot: u32,
        _len: u32,
        _plane: Option<SlotId>,
        _first_page: u32,
        _to: CopyRoom<'_>,
    ) -> Result<StageCopy, SnapshotError> {
        Err(no_copies())
    }

    /// Bytes of each block's state at position `len`.
    fn block_sizes(&self, _len: u32) -> Vec<BlockSize> {
        Vec::new()
    }

    /// Copies a part of a sequence's state at position `len`.
    ///
    /// # Errors
    /// As [`StageRunner::copy_new`]; pages behind that position.
    fn copy_part(
        &self,
        _slot: u32,
        _len: u32,
        _of: &CopyOf,
    ) -> Result<Vec<BlockCopy>, SnapshotError> {
        Err(no_copies())
    }

    /// Writes a part of the state of an open sequence's first `len` positions. Returns how much is there then of each
    /// block, by layer and place, that the part is of.
    ///
    /// # Errors
    /// Something does not fit.
    fn put_part(
        &mut self,
        _slot: u32,
        _len: u32,
        _part: FindPart<'_, '_>,
    ) -> Result<Vec<(u32, u32, Written)>, SnapshotError> {
        Err(no_copies())
    }

    /// Gives an open sequence the state of its first `len` positions.
    ///
    /// # Errors
    /// Something does not fit or is missing; nothing has changed beyond parts that were written.
    fn put_back(
        &mut self,
        _slot: u32,
        _len: u32,
        _tokens: &[u32],
        _source: FindSource<'_, '_>,
    ) -> Result<(), SnapshotError> {
        Err(no_copies())
    }
}

fn no_copies() -> SnapshotError {
    SnapshotError::Foreign("this stage takes no copies".to_owned())
}
