//! The types that a model's description is made of. They are plain data, without weights. Their methods give
//! only what follows from the sizes.

use super::{
    Beside, BlockKind, BlockSpec, HeadReads, KvFrom, LAYER_ROW_TABLE, LayerSpec, NormKind,
    OUTPUT_NORM, OwnDraftsSpec, Passes, RopeSpec, Streams, SwitchSpec, layer_of,
};
use std::ops::Range;

use super::names::ENCODER_PREFIX;
use crate::state::{Prefixes, StateSpec};

/// A model as data: sizes, layers, and what surrounds them.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Architecture, the file's `general.architecture`.
    pub arch: String,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Rows of the embedding and width of the logits.
    pub n_vocab: usize,
    /// Positions the model was trained for; the default context.
    pub n_ctx_train: u32,
    /// Multiplies the embedded rows (1: nothing).
    pub embedding_scale: f32,
    /// Rotary embedding of the attention blocks; `None` where nothing rotates.
    pub rope: Option<RopeSpec>,
    /// Rotary embedding of [`Rotation::Local`] blocks, where a model has two.
    pub local_rope: Option<RopeSpec>,
    /// The layers, in order of computation.
    pub layers: Vec<LayerSpec>,
    /// The model's end, from the last hidden rows to logits.
    pub head: HeadSpec,
    /// Parts around the blocks that only some architectures have.
    pub skeleton: Skeleton,
    /// The model's own blocks of drafts; `None`: the file has none, or none that runs here.
    pub own_drafts: Option<OwnDraftsSpec>,
    /// Reason why blocks of drafts that the file has do not run.
    pub own_drafts_refused: Option<String>,
}

/// Parts around the blocks that only some architectures have. The default is a model without them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Skeleton {
    /// The norms before blocks and head.
    pub norm: NormKind,
    /// Norm of the embedded rows before the first layer; `None`: there is none.
    pub embedding_norm: Option<NormKind>,
    /// Rows of the table of token types, of which the first is added to every token's; 0: there is none.
    pub token_types: usize,
    /// Whether each position has a row of its own, which is added to the token's: positions end with the table.
    pub learned_positions: bool,
    /// Whether the names of layers' tensors begin with `enc.`, beside those of a decoder that another file has.
    pub encoder_names: bool,
    /// Part of the names of layers' tensors that are for images only.
    pub left_out: Option<&'static str>,
    /// Values beside the residual stream.
    pub beside: Beside,
    /// Rows of a token's residual stream.
    pub streams: Streams,
    /// Order in which the layers of the file run.
    pub passes: Passes,
    /// Adapters inside the file, which tokens switch on.
    pub switch: Option<SwitchSpec>,
}

impl ModelSpec {
    /// Number of layers: a cut may fall before each of them but the first.
    #[inline]
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// Whether a stage of these layers can have the blocks of drafts: the last one can, where there are some.
    pub fn may_draft(&self, layers: &Range<usize>) -> bool {
        layers.end == self.n_layer() && self.own_drafts.is_some()
    }

    /// Positions that a sequence can have at most; `None`: as many as there is room for.
    pub fn max_positions(&self) -> Option<u32> {
        self.skeleton.learned_positions.then_some(self.n_ctx_train)
    }

    /// Whether rows see the rows after them: the model makes vectors of whole texts, and writes none.
    pub fn is_encoder(&self) -> bool {
        let mut blocks = self.layers.iter().flat_map(|layer| &layer.blocks);
        blocks.any(|block| matches!(&block.kind, BlockKind::Attention(a) if a.mask.both_ways))
    }

    /// The lengths at which a sequence can be copied or cut, the same for every stage, whatever its layers hold. With
    /// `windows`, layers with a window keep only the positions that rows to come see.
    pub fn prefixes(&self, windows: bool) -> Prefixes {
        if self.is_encoder() {
            return Prefixes::None;
        }
        let mut blocks = self.layers.iter().flat_map(|layer| &layer.blocks);
        let is_whole = |block: &BlockSpec| match block.kind.state() {
            StateSpec::Slot { .. } | StateSpec::Entries { .. } => true,
            StateSpec::Paged { window, .. } => windows && window.is_some(),
            StateSpec::None => false,
        };
        if blocks.any(is_whole) { Prefixes::Whole } else { Prefixes::All }
    }

    /// Number in the file of a layer's weights: its own, unless layers run more than once.
    #[inline]
    pub fn in_file(&self, layer: usize) -> usize {
        self.skeleton.passes.in_file(layer)
    }

    /// The layers that compute with the weights of layer `in_file` of the file.
    pub fn layers_of(&self, in_file: usize) -> impl Iterator<Item = usize> + use<'_> {
        let all = match self.skeleton.passes {
            Passes::Once => in_file..in_file.saturating_add(1).min(self.n_layer()),
            Passes::Loop(_) | Passes::Stacks(_) => 0..self.n_layer(),
        };
        all.filter(move |&layer| self.in_file(layer) == in_file)
    }

    /// Tensor of the weight of the norm with which a pass ends in one of `layers`; `None`: none ends there, or its norm has
    /// no weights.
    pub fn pass_norm(&self, layers: &Range<usize>) -> Option<&'static str> {
        let Passes::Loop(_) = &self.skeleton.passes else { return None };
        let ends = |layer| self.skeleton.passes.end(layer, self.n_layer()).is_some();
        layers.clone().any(ends).then_some(OUTPUT_NORM)
    }

    /// Stem of the names of a layer's tensors.
    pub fn layer_stem(&self, layer: usize) -> String {
        let prefix = if self.skeleton.encoder_names { ENCODER_PREFIX } else { "" };
        format!("{prefix}blk.{}", self.in_file(layer))
    }

    /// Whether layer `layer` reads a tensor that has the name of layer `in_file` of the file.
    pub fn reads(&self, layer: usize, in_file: usize, tensor: &str) -> bool {
        (self.in_file(layer) == in_file && !self.leaves_out(layer, tensor))
            || self.shares(layer, tensor)
    }

    /// Whether layer `layer` has a tensor of its own name that is not read: it is for images, or the layer attends to
    /// keys and values of another.
    pub fn leaves_out(&self, layer: usize, tensor: &str) -> bool {
        if self.skeleton.left_out.is_some_and(|part| tensor.contains(part)) {
            return true;
        }
        self.layers[layer].blocks.iter().any(|block| match &block.kind {
            BlockKind::Attention(a) => {
                let unread = ["attn_k.", "attn_v.", "attn_k_norm."];
                matches!(a.kv.from, KvFrom::Borrowed(_))
                    && unread.iter().any(|part| tensor.contains(part))
            }
            // For tokens that are pictures.
            BlockKind::Moe(_) => tensor.contains(".exp_probs_b_vl."),
            _ => false,
        })
    }

    /// Share of a tensor that one row reads: of adapters inside the file, those of one place.
    pub fn switched_share(&self, tensor: &str) -> f64 {
        match &self.skeleton.switch {
            Some(switch) if tensor.ends_with(".lora_a") || tensor.ends_with(".lora_b") => {
                1.0 / switch.n_places as f64
            }
            _ => 1.0,
        }
    }

    /// Whether layer `layer` reads a tensor that has another layer's name, or its own, or none's.
    pub fn shares(&self, layer: usize, tensor: &str) -> bool {
        self.layers[layer].blocks.iter().any(|block| match &block.kind {
            BlockKind::Attention(a) => {
                a.scores.buckets.as_ref().is_some_and(|b| b.tensor == tensor)
            }
            BlockKind::Ngram(_) => tensor == LAYER_ROW_TABLE,
            _ => false,
        })
    }

    /// Whether a tensor outside the layers is read by one of them alone.
    pub fn is_of_a_layer(&self, tensor: &str) -> bool {
        layer_of(tensor).is_none() && (0..self.n_layer()).any(|layer| self.shares(layer, tensor))
    }
}

/// The end of the model: `logits = output(norm(x)) * logit_scale`, bounded, some of them masked. An encoder's end is the
/// norm.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadSpec {
    /// Rows that the last norm reads.
    pub reads: HeadReads,
    /// Tensor of the last norm's weight; `None` where the layers end with one.
    pub norm: Option<&'static str>,
    /// Epsilon of the last norm.
    pub eps: f32,
    /// Multiplies the logits (1: nothing).
    pub logit_scale: f32,
    /// Bound of the logits: `cap * tanh(logit / cap)`.
    pub softcap: Option<f32>,
    /// Tokens that are never drawn: their logits are the least number that there is.
    pub masked: Range<usize>,
}

impl HeadSpec {
    /// A norm and a matrix.
    pub fn usual(eps: f32) -> Self {
        let (reads, norm) = (HeadReads::Stream, Some(OUTPUT_NORM));
        Self { reads, norm, eps, logit_scale: 1.0, softcap: None, masked: 0..0 }
    }
}
