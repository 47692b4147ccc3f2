//! Mixers with a state of a fixed size as data: Mamba, short convolutions, RWKV's mixing of time and of channels.

/// A Mamba mixer.
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
    /// Their epsilon.
    pub eps: f32,
    /// Whether they have weights (`ssm_dt_norm`, `ssm_b_norm`, `ssm_c_norm`).
    pub weighted: bool,
}

/// A gated short convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvSpec {
    /// Channels.
    pub n_embd: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
}

/// RWKV-7's time mixing.
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

/// RWKV-6's time mixing.
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
    /// Inner width.
    pub n_ff: usize,
    /// Whether a gate multiplies what comes out.
    pub gated: bool,
}
