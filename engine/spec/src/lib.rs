//! A model as data: the blocks of each layer and their sizes, the parts around the layers, and the sizes of the state
//! that blocks keep of a sequence. The crate holds no weights and computes nothing with them.
//!
//! `brigade-models` makes these descriptions of metadata, stages are loaded by them, and the planner and the scheduler
//! count with them.
//!
//! Reading order:
//!
//! - `model` has [`ModelSpec`], and `layer` its layers and blocks, with some of the blocks. The other blocks are in `attention`,
//!   `compressed`, `delta`, `ffn`, `ngram`, `recurrent`, `stream` and `switch`.
//! - `residual` says how blocks meet the residual stream, and what a token's stream is made of. `beside` and `passes` have what
//!   few models have around their blocks; `rope` has rotations, `norm` the norms. `own_drafts` has the blocks behind the layers.
//! - `boundary` says what crosses a cut, and `state` what a sequence takes.
//! - `names` has what tensors are called, and `tensors` says which of them a stage reads. [`heads`] has those that none
//!   reads.
//! - `error` is what all of that, and loading, can end with.

mod attention;
mod beside;
mod boundary;
mod compressed;
mod delta;
mod error;
mod ffn;
pub mod heads;
mod layer;
mod model;
mod names;
mod ngram;
mod norm;
mod own_drafts;
mod passes;
mod recurrent;
mod residual;
mod rope;
mod state;
mod stream;
mod switch;
mod tensors;

use std::sync::Arc;

use brigade_gguf::Gguf;

pub use attention::{
    Alibi, AttentionSpec, BlockIndexSpec, BlockScoring, Buckets, GateActivation, GateSource,
    HeadGate, HeadOutputSpec, KvFrom, KvSpec, MaskSpec, NormOver, QkNorm, Rotation, ScoreSpec,
    Temperature,
};
pub use beside::{Beside, BoundarySpec};
pub use compressed::{CompressedSpec, EntriesSpec, EntryIndexSpec};
pub use delta::{DeltaNetSpec, KdaGates, KdaSpec, OutputGate};
pub use error::ModelError;
pub use ffn::{Activation, AdjugateSpec, LatentSpec, MlpSpec, MoeSpec, Router, SharedExpertSpec};
pub use layer::{
    BlockKind, BlockSpec, ChosenBy, ChosenSpec, IndexSpec, LayerSpec, LowRankSteps, Mamba2Spec,
    MlaGate, MlaSpec, Reads,
};
pub use model::{HeadSpec, ModelSpec, Skeleton};
pub use names::{
    ALTUP_PROJ, EMBEDDING_NORM, LAYER_ROW_TABLE, LAYER_ROWS, LOW_START, OUTPUT, OUTPUT_NORM,
    POSITION_EMBD, TOKEN_EMBD, TOKEN_EXPERTS, TOKEN_TYPES, is_of_other_senses, layer_of,
};
pub use ngram::{NgramHead, NgramSpec};
pub use norm::{NormKind, NormSpec};
pub use own_drafts::{DraftHeadSpec, DraftInput, KEPT_HIDDEN, OwnDraftsSpec, SPARE_KEYS};
pub use passes::{LoopSpec, PassEnd, Passes, StackSpec};
pub use recurrent::{
    ChannelMixSpec, LightningSpec, MambaNorms, MambaSpec, ShortConvSpec, TimeMix6Spec, TimeMixSpec,
};
pub use residual::{
    AltUpSpec, AltUpStep, DepthSpec, GatedSpec, HeadReads, HyperSpec, NormedSpec, Residual, Streams,
};
pub use rope::{RopeFactors, RopeSpec, YarnSpec};
pub use state::{Prefixes, StateRoom, StateSpec, pages_kept, pages_of_each, pages_of_rows};
pub use stream::{LaurelSpec, LayerRowSpec};
pub use switch::{SwitchRouterSpec, SwitchSpec};
pub use tensors::{
    MAX_ADAPTERS, has_token_rows, is_of_input, is_tied, own_draft_tensors, stage_tensors,
    stage_tensors_with_drafts,
};

/// A model's header with its description: what a stage is loaded by.
#[derive(Clone)]
pub struct Described<'m> {
    /// The header; tensors' data may be elsewhere.
    pub model: &'m Gguf,
    /// The description of the model.
    pub spec: Arc<ModelSpec>,
}
