//! Mixers with a state of a fixed size as data: Mamba, short convolutions, RWKV's mixing of time and of channels.

use brigade_shapes::SsdShape;

/// A Mamba mixer: convolution, selective scan and gate.
#[derive(Clone, Debug, PartialEq)]
pub struct MambaSpec {
    /// Channels of convolution and scan.
    pub d_inner: usize,
    /// States of a channel.
    pub n_state: usize,
    /// Width that the step sizes come from.
    pub dt_rank: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
    /// Norms of the low-rank step sizes, B and C.
    pub norms: Option<MambaNorms>,
}

/// RMS norms inside a Mamba mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct MambaNorms {
    /// Epsilon of the norms.
    pub eps: f32,
    /// Whether they have weights (`ssm_dt_norm`, `ssm_b_norm`, `ssm_c_norm`).
    pub weighted: bool,
}

/// Lightning attention, linear attention with a fixed decay for each head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LightningSpec {
    /// Number of heads.
    pub n_head: usize,
    /// Elements of a query, a key and a value.
    pub head_dim: usize,
    /// Share of the layers that come after this one, 1 for the first: the fewer, the slower heads forget.
    pub layer_share: f32,
    /// Epsilon of the norm of all heads together.
    pub eps: f32,
}

/// Added to [`LightningSpec::layer_share`], so that heads of the last layer forget too.
const LEAST_SHARE: f32 = 1e-5;

impl LightningSpec {
    /// Sizes of its recurrence.
    #[inline]
    pub fn shape(&self) -> SsdShape {
        let &Self { n_head, head_dim, .. } = self;
        SsdShape { n_head, head_dim, n_state: head_dim, n_group: n_head }
    }

    /// The logarithm of each head's decay from one token to the next, `[n_head]`: slopes as ALiBi has them (arXiv
    /// 2108.12409, section 3), times the layer's share.
    pub fn log_decays(&self) -> Vec<f32> {
        let first = libm::exp2(-libm::exp2(3.0 - libm::log2(self.n_head as f64)));
        let share = f64::from(self.layer_share) + f64::from(LEAST_SHARE);
        (1..=self.n_head).map(|h| (-libm::pow(first, h as f64) * share) as f32).collect()
    }
}

/// A gated short convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvSpec {
    /// Channels of the convolution, the width of the model.
    pub n_embd: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
}

/// The time mixing of RWKV-7.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeMixSpec {
    /// Width of a row.
    pub n_embd: usize,
    /// Keys and values of a head; divides the width.
    pub head_dim: usize,
    /// Narrow width that decays come from.
    pub decay_rank: usize,
    /// Narrow width that learning rates come from.
    pub rate_rank: usize,
    /// Narrow width that the share of the first layer's values comes from.
    pub value_rank: usize,
    /// Narrow width that gates come from; `None` without gates.
    pub gate_rank: Option<usize>,
    /// Whether each head's output is normed.
    pub norm: bool,
}

/// The time mixing of RWKV-6.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeMix6Spec {
    /// Width of a row.
    pub n_embd: usize,
    /// Keys and values of a head; divides the width.
    pub head_dim: usize,
    /// Heads of keys and values, which divide the heads.
    pub n_kv_head: usize,
    /// Narrow width that the mixtures' shares come from.
    pub mix_rank: usize,
    /// Narrow width that decays come from.
    pub decay_rank: usize,
    /// Whether it is gated linear attention instead, as in QRWKV-6.
    pub linear_attention: bool,
}

/// Channel mixing of RWKV-6 and RWKV-7.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelMixSpec {
    /// Width of a row.
    pub n_embd: usize,
    /// Width between the two matrices.
    pub n_ff: usize,
    /// Whether a gate multiplies what comes out.
    pub gated: bool,
}
