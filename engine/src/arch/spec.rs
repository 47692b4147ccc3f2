//! The types a model description is made of. Plain data: no weights, no behaviour beyond what
//! follows from the sizes.

use super::RopeSpec;
use crate::state::{Prefixes, StateSpec};

/// A model as data: sizes, layers, and what surrounds them.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// As `general.architecture` says.
    pub arch: String,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Rows of the embedding and width of the logits.
    pub n_vocab: usize,
    /// Positions the model was trained for; the default context.
    pub n_ctx_train: u32,
    /// Multiplies the embedded rows (1: nothing).
    pub embedding_scale: f32,
    /// Rotary embedding, one for all attention blocks; `None` where nothing rotates.
    pub rope: Option<RopeSpec>,
    /// In order of computation.
    pub layers: Vec<LayerSpec>,
    /// What turns the last hidden rows into logits.
    pub head: HeadSpec,
}

impl ModelSpec {
    /// Number of layers: a cut may fall before each of them but the first.
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// What a sequence can be copied or cut at: the same for every stage, whatever its layers hold.
    pub fn prefixes(&self) -> Prefixes {
        let mut blocks = self.layers.iter().flat_map(|layer| &layer.blocks);
        match blocks.any(|block| matches!(block.kind.state(), StateSpec::Slot { .. })) {
            true => Prefixes::Whole,
            false => Prefixes::All,
        }
    }

    /// What crosses the cut before layer `cut` (`0 < cut < n_layer`): one hidden row a token.
    pub fn boundary(&self, _cut: usize) -> BoundarySpec {
        BoundarySpec { widths: vec![self.n_embd] }
    }
}

/// Rows that cross a cut, tensor by tensor; each is `[n_rows, width]` in f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundarySpec {
    /// Width of each tensor, in values.
    pub widths: Vec<usize>,
}

impl BoundarySpec {
    /// Values a token sends across the cut.
    pub fn width(&self) -> usize {
        self.widths.iter().sum()
    }
}

/// One layer: residual blocks in order, `x += residual_scale * block(norm(x))` for each; a block that
/// stands beside another reads the same `norm(x)` as the one before it.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// At least one.
    pub blocks: Vec<BlockSpec>,
}

/// A block with the norm before it and the scale after it.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockSpec {
    /// Tensor of the norm's weight within the layer, e.g. `attn_norm.weight`.
    pub norm: &'static str,
    /// Epsilon of that RMS norm, inside the root.
    pub eps: f32,
    /// Multiplies the block's output before it is added.
    pub residual_scale: f32,
    /// Whether it reads the normed rows of the block before it in the layer (parallel branches), not
    /// those of the residual stream as that block left it.
    pub beside: bool,
    /// What the block computes.
    pub kind: BlockKind,
}

/// Every kind of mixer and FFN.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockKind {
    /// Softmax attention over a KV cache.
    Attention(AttentionSpec),
    /// Dense gated FFN.
    Mlp(MlpSpec),
    /// Mixture of experts.
    Moe(MoeSpec),
}

impl BlockKind {
    /// Whether a row's output depends on other rows; if not, unwanted rows may be left out.
    pub fn mixes_rows(&self) -> bool {
        matches!(self, Self::Attention(_))
    }

    /// What the block remembers of a sequence.
    pub fn state(&self) -> StateSpec {
        match self {
            Self::Attention(a) => {
                StateSpec::Paged { values_per_token: a.n_kv_head * (a.head_dim_k + a.head_dim_v) }
            }
            Self::Mlp(_) | Self::Moe(_) => StateSpec::None,
        }
    }

    /// Share of a layer's tensor (by name) that one token reads: less than 1 for experts.
    pub fn active_share(&self, tensor: &str) -> f64 {
        match self {
            Self::Moe(m) if tensor.contains("_exps.") => m.n_used as f64 / m.n_expert as f64,
            _ => 1.0,
        }
    }
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub n_head: usize,
    /// Key/value heads; divides `n_head`.
    pub n_kv_head: usize,
    /// Width of a query or key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
    /// Multiplies q·k.
    pub scale: f32,
    /// Whether q and k are rotated by the model's [`RopeSpec`].
    pub rope: bool,
    /// Epsilon of the per-head norms of q and k before the rotation; `None` without them.
    pub qk_norm_eps: Option<f32>,
}

/// `down(silu(gate x) * up x)`.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpSpec {
    /// Inner width.
    pub n_ff: usize,
    /// Between the tensor's stem and `.weight`: `""`, or `"_shexp"` for a shared expert.
    pub suffix: &'static str,
}

/// Mixture of gated experts, routed by softmax; a token is computed by the `n_used` best.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// Experts in the layer.
    pub n_expert: usize,
    /// Experts a token uses.
    pub n_used: usize,
    /// Inner width of an expert.
    pub n_ff: usize,
    /// Whether the chosen weights are divided by their sum.
    pub norm_weights: bool,
    /// An expert that every token uses, added un-gated.
    pub shared: Option<MlpSpec>,
}

/// The end of the model: `logits = output(norm(x)) * logit_scale`.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadSpec {
    /// Epsilon of the last norm.
    pub eps: f32,
    /// Multiplies the logits (1: nothing).
    pub logit_scale: f32,
}
