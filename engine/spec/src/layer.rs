//! A layer as data: its blocks with what surrounds each of them, every kind of block, and some of the kinds.

use super::{
    AttentionSpec, ChannelMixSpec, CompressedSpec, DeltaNetSpec, KdaSpec, LaurelSpec, LayerRowSpec,
    LightningSpec, MambaSpec, MlpSpec, MoeSpec, NgramSpec, NormSpec, Residual, Rotation,
    ShortConvSpec, SwitchRouterSpec, Temperature, TimeMix6Spec, TimeMixSpec,
};
use crate::state::StateSpec;
use brigade_shapes::{PoolSizes, SsdShape, Window, mamba_state_len};

/// One layer: blocks in order. Each reads the residual stream, normed, and what it gives meets the stream again.
/// [`Reads`] says which rows it reads, and [`Residual`] how both meet.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Usually a mixer and an FFN; none where a layer does nothing.
    pub blocks: Vec<BlockSpec>,
}

impl LayerSpec {
    /// Whether rows are sent to experts in it.
    pub fn has_experts(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block.kind, BlockKind::Moe(_)))
    }

    /// Whether a tensor of the layer (by name) is of experts that rows are sent to.
    pub fn is_of_experts(&self, tensor: &str) -> bool {
        self.has_experts() && (tensor.contains("_exps.") || tensor.contains("_chexps."))
    }

    /// Number of leading blocks that every row must go through, although only some rows are wanted behind the layer.
    /// They end with the last block that mixes rows, or the last that reads rows from before that one. 0: no block
    /// mixes rows.
    pub fn n_mixing(&self) -> usize {
        let Some(last) = self.blocks.iter().rposition(|block| block.kind.mixes_rows()) else {
            return 0;
        };
        let rest = &self.blocks[last + 1..];
        let beside = rest.iter().take_while(|block| block.reads == Reads::AsBefore).count();
        let is_early =
            |block: &BlockSpec| block.reads == Reads::LayerInput || block.kind.reads_layer_input();
        let early = rest.iter().rposition(is_early).map_or(0, |i| i + 1);
        last + 1 + beside.max(early)
    }

    /// The number under which snapshots and copies have the state of block `index`.
    pub fn state_number(&self, index: usize) -> usize {
        // A prediction of streams has counted as a block.
        let predicts = self.blocks.first().is_some_and(|block| block.residual.predicts());
        index + usize::from(predicts)
    }
}

/// A block with the norms before and behind it, and how it meets the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockSpec {
    /// Norm before the block; `None` where it reads rows as they are.
    pub norm: Option<NormSpec>,
    /// The norm of its output.
    pub post_norm: Option<NormSpec>,
    /// Rows that the block reads.
    pub reads: Reads,
    /// Rule by which the block meets the residual stream.
    pub residual: Residual,
    /// The computation of the block, with its sizes.
    pub kind: BlockKind,
}

impl BlockSpec {
    /// A block on its own whose output is added as it is.
    pub fn new(norm: &'static str, eps: f32, kind: BlockKind) -> Self {
        Self { norm: Some(NormSpec { weight: norm, eps }), ..Self::bare(kind) }
    }

    /// A block that reads the stream as it is.
    pub fn bare(kind: BlockKind) -> Self {
        let (reads, residual) = (Reads::Stream, Residual::Plain);
        Self { norm: None, post_norm: None, reads, residual, kind }
    }
}

/// Rows that a block reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// The residual stream as the block before it left it, normed.
    Stream,
    /// The normed rows of the block before it in the layer (parallel branches with one norm).
    AsBefore,
    /// The residual stream as it came into the layer, with a norm of the block's own.
    LayerInput,
}

/// Every kind of mixer and FFN.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockKind {
    /// Softmax attention over a KV cache.
    Attention(AttentionSpec),
    /// Mamba-2: a causal convolution and a state space recurrence.
    Mamba2(Mamba2Spec),
    /// Latent attention over a cache of compressed rows.
    Mla(MlaSpec),
    /// Attention to a window and to entries that stand for several positions each.
    Compressed(CompressedSpec),
    /// A dense FFN.
    Mlp(MlpSpec),
    /// A mixture of experts.
    Moe(MoeSpec),
    /// Mamba's selective state space.
    Mamba(MambaSpec),
    /// A gated short convolution.
    ShortConv(ShortConvSpec),
    /// Linear attention with a fixed decay.
    Lightning(LightningSpec),
    /// Kimi delta attention, a delta rule by key channel.
    Kda(KdaSpec),
    /// A gated delta net, a delta rule by head.
    DeltaNet(DeltaNetSpec),
    /// The time mixing of RWKV-7.
    TimeMix(TimeMixSpec),
    /// The time mixing of RWKV-6.
    TimeMix6(TimeMix6Spec),
    /// Channel mixing of RWKV-6 and RWKV-7.
    ChannelMix(ChannelMixSpec),
    /// Addition of a row that a token has for the layer.
    LayerRow(LayerRowSpec),
    /// A low-rank way past attention.
    Laurel(LaurelSpec),
    /// Choice of the file's own adapter for each row.
    Switch(SwitchRouterSpec),
    /// A square matrix (`attn_output`), which stands where other layers have attention.
    Linear,
    /// Embeddings of the last few tokens together.
    Ngram(NgramSpec),
}

impl BlockKind {
    /// Whether a row's output depends on other rows; if not, unwanted rows may be left out.
    #[inline]
    pub fn mixes_rows(&self) -> bool {
        let of_row = matches!(self, Self::LayerRow(_) | Self::Laurel(_) | Self::Linear);
        !(of_row || matches!(self, Self::Mlp(_) | Self::Moe(_)))
    }

    /// Whether the block reads the residual stream as it came into the layer, besides its own rows.
    #[inline]
    pub fn reads_layer_input(&self) -> bool {
        matches!(self, Self::Moe(m) if m.routes_early)
    }

    /// Sizes of the block's state of a sequence.
    pub fn state(&self) -> StateSpec {
        match self {
            Self::Attention(a) => {
                let (per_head, index) = ([a.head_dim_k, a.head_dim_v], a.index_dim());
                StateSpec::Paged { n_head: a.n_kv_head, per_head, index, window: a.mask.window }
            }
            Self::Switch(_) => {
                let per_head = [SwitchRouterSpec::WIDTH; 2];
                StateSpec::Paged { n_head: 1, per_head, index: 0, window: None }
            }
            Self::Mamba(m) => StateSpec::Slot {
                conv: (m.conv_taps - 1) * m.d_inner,
                scan: mamba_state_len(m.d_inner, m.n_state),
            },
            Self::ShortConv(c) => StateSpec::Slot { conv: (c.conv_taps - 1) * c.n_embd, scan: 0 },
            Self::Lightning(l) => StateSpec::Slot { conv: 0, scan: l.shape().state_len() },
            Self::Kda(k) => k.state(),
            Self::DeltaNet(d) => d.state(),
            Self::Mamba2(m) => StateSpec::Slot {
                conv: (m.conv_taps - 1) * m.conv_channels(),
                scan: m.shape.state_len(),
            },
            Self::Mla(m) => {
                let (per_head, index) = ([m.key_width(), 0], m.index_dim());
                StateSpec::Paged { n_head: 1, per_head, index, window: m.window }
            }
            Self::Compressed(c) => c.state(),
            Self::TimeMix(t) => StateSpec::Slot { conv: t.n_embd, scan: t.n_embd * t.head_dim },
            Self::TimeMix6(t) => StateSpec::Slot { conv: t.n_embd, scan: t.n_embd * t.head_dim },
            Self::ChannelMix(c) => StateSpec::Slot { conv: c.n_embd, scan: 0 },
            Self::Ngram(n) => n.state(),
            Self::Mlp(_) | Self::Moe(_) | Self::Linear => StateSpec::None,
            Self::LayerRow(_) | Self::Laurel(_) => StateSpec::None,
        }
    }

    /// Positions that a row sees at most; `None`: all before it, or in an encoder all of its text.
    pub fn window(&self) -> Option<u32> {
        match self {
            Self::Attention(attention) => attention.mask.window.map(Window::width),
            Self::Mla(mla) => mla.window.map(Window::width),
            _ => None,
        }
    }

    /// Weight elements that a row of width `n_embd` multiplies with where it is only remembered, if they are fewer than
    /// those of a row that is read.
    pub fn elements_to_remember(&self, n_embd: usize) -> Option<usize> {
        match self {
            Self::Attention(spec) => {
                Some(n_embd * spec.n_kv_head * (spec.head_dim_k + spec.head_dim_v))
            }
            Self::Mla(spec) => Some(n_embd * spec.key_width()),
            _ => None,
        }
    }

    /// Share of a layer's tensor (by name) that one token reads: less than 1 for experts.
    pub fn active_share(&self, tensor: &str) -> f64 {
        match self {
            Self::Moe(m) if tensor.contains("_exps.") => m.n_used as f64 / m.n_expert as f64,
            Self::Moe(m) if tensor.contains("_chexps.") => m.adjugates.map_or(1.0, |adjugates| {
                let n_group = m.n_expert / adjugates.per_group;
                adjugates.n_used(m.n_expert, m.n_used) as f64 / n_group as f64
            }),
            _ => 1.0,
        }
    }
}

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values of all
/// heads come from one compressed row a position.
#[derive(Clone, Debug, PartialEq)]
pub struct MlaSpec {
    /// Number of query heads.
    pub n_head: usize,
    /// Width through which queries are made; `None` where one matrix makes them.
    pub q_rank: Option<usize>,
    /// Width of the compressed row.
    pub kv_rank: usize,
    /// Elements of a head's query and key that come from the compressed row.
    pub n_nope: usize,
    /// Elements of a head's query, and of the key that all heads share, that are rotated.
    pub n_pe: usize,
    /// Width of a head's value.
    pub head_dim_v: usize,
    /// Factor on q·k before the softmax.
    pub scale: f32,
    /// Rotary embedding of the pe parts.
    pub rotation: Rotation,
    /// Whether the key's pe part is normed (`attn_k_norm`) before it is rotated.
    pub pe_norm: bool,
    /// Window of earlier positions that a row sees; `None`: all of them.
    pub window: Option<Window>,
    /// Epsilon of the norms of compressed rows.
    pub eps: f32,
    /// Gate on the heads' values: the sigmoid of a projection of the block's input (`attn_gate`). `None`: nothing.
    pub gate: Option<MlaGate>,
    /// Whether each head has a score without a value (`attn_sinks`) that takes part in the softmax.
    pub sinks: bool,
    /// A factor on queries that grows with the position.
    pub temperature: Option<Temperature>,
    /// Choice of the positions that a row attends to; `None`: all before it.
    pub chosen: Option<ChosenSpec>,
}

impl MlaSpec {
    /// Width of the key that is remembered of a position.
    #[inline]
    pub fn key_width(&self) -> usize {
        self.kv_rank + self.n_pe
    }

    /// Width of the index's values that are remembered of a position: its key, and a gate where keys are pooled. 0: the
    /// block has no index.
    #[inline]
    pub fn index_dim(&self) -> usize {
        match self.chosen {
            Some(ChosenSpec { by: ChosenBy::Index(index), sizes, .. }) => {
                sizes.kept_of(index.head_dim)
            }
            _ => 0,
        }
    }
}

/// Number of values in the gate of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlaGate {
    /// One for each value of each head.
    EachValue,
    /// One for each head.
    EachHead,
}

/// Sparse attention: a row attends to some of the positions before it (DeepSeek-V3.2, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChosenSpec {
    /// Positions that a row attends to, one by one or in pools.
    pub sizes: PoolSizes,
    /// The index that chooses the positions.
    pub by: ChosenBy,
    /// Number of the tensor beside the stream that holds positions, or pools, for several blocks.
    pub place: usize,
}

/// The index that chooses a row's positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChosenBy {
    /// The block's own index.
    Index(IndexSpec),
    /// The index of the last block before it that has one.
    Before,
}

/// An index of positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexSpec {
    /// Heads, which share its keys.
    pub n_head: usize,
    /// Width of its queries and keys. As many elements of them are rotated as of the block's own.
    pub head_dim: usize,
    /// Rotary embedding of these elements.
    pub rotation: Rotation,
    /// Whether these come last; else they come first.
    pub rotates_last: bool,
    /// Whether element `i` of the first half of them and of the second are a pair, though elsewhere in the model pairs
    /// stand side by side.
    pub halves: bool,
    /// Epsilon of the norm of its keys.
    pub eps: f32,
    /// Whether later blocks attend to the same positions.
    pub shared: bool,
}

/// Mamba-2's mixer (arXiv 2405.21060).
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2Spec {
    /// Sizes of the recurrence.
    pub shape: SsdShape,
    /// Taps of the causal convolution before it.
    pub conv_taps: usize,
    /// Epsilon of the norm by groups after the gate; `None` without it.
    pub norm_eps: Option<f32>,
    /// Narrow rows from which B, C and the time steps are made. They come from x behind its convolution. `None`: all
    /// three come from the block's input.
    pub low_rank: Option<LowRankSteps>,
}

/// B, C and narrow rows for the time steps, made of x and normed (PLaMo 2).
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankSteps {
    /// Width of the narrow rows.
    pub width: usize,
    /// Epsilon of the norms.
    pub eps: f32,
}

impl Mamba2Spec {
    /// Channels of the convolution: x, and B and C where they come from the block's input.
    #[inline]
    pub fn conv_channels(&self) -> usize {
        match self.low_rank {
            None => self.shape.n_inner() + 2 * self.shape.n_bc(),
            Some(_) => self.shape.n_inner(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Activation, AltUpSpec, AltUpStep};

    fn ffn(reads: Reads) -> BlockSpec {
        let kind = BlockKind::Mlp(MlpSpec::new(8, Activation::SwiGlu));
        BlockSpec { reads, ..BlockSpec::bare(kind) }
    }

    fn attention() -> BlockSpec {
        BlockSpec::bare(BlockKind::Attention(AttentionSpec::plain(2, 1, [4, 4])))
    }

    #[test]
    fn all_rows_go_through_what_mixes_them_and_through_what_reads_what_was_before_it() {
        let n_mixing = |blocks| LayerSpec { blocks }.n_mixing();
        assert_eq!(n_mixing(Vec::new()), 0);
        assert_eq!(n_mixing(vec![ffn(Reads::Stream)]), 0);
        assert_eq!(n_mixing(vec![attention(), ffn(Reads::Stream)]), 1);
        assert_eq!(n_mixing(vec![attention(), ffn(Reads::AsBefore), ffn(Reads::Stream)]), 2);
        assert_eq!(n_mixing(vec![attention(), ffn(Reads::Stream), ffn(Reads::LayerInput)]), 3);
    }

    #[test]
    fn a_prediction_counts_where_states_are_numbered() {
        let altup = AltUpSpec { n: 4, second: 1, eps: 1e-6 };
        let residual = Residual::AltUp(altup, AltUpStep::Predict);
        let numbers = |first| {
            let layer = LayerSpec { blocks: vec![first, ffn(Reads::Stream)] };
            [0, 1].map(|index| layer.state_number(index))
        };
        assert_eq!(numbers(attention()), [0, 1]);
        assert_eq!(numbers(BlockSpec { residual, ..attention() }), [1, 2]);
    }
}
