//! Rotary embedding as metadata describe it: base, scaling, YaRN, tensors of factors. (RoFormer, arXiv
//! 2104.09864; YaRN, arXiv 2309.00071. The constants that depend on the context are those of llama.cpp.)

use brigade_shapes::RopeLayout;

/// Rotary embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Pairing of a head's rotated elements.
    pub layout: RopeLayout,
    /// Rotated dimensions of a head, from the first; even.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// Multiplies the angles (1 / scaling factor), but those that YaRN leaves alone.
    pub freq_scale: f32,
    /// Multiplies sine and cosine, before YaRN's own magnitude.
    pub attn_factor: f32,
    /// YaRN's interpolation, where the model asks for it.
    pub yarn: Option<YarnSpec>,
    /// Tensor whose values divide the angles, where the file has one.
    pub factors: Option<RopeFactors>,
    /// Values of that tensor; where they are more than pairs, the last serve a wider rotation.
    pub n_factors: usize,
    /// Pairs, in order, whose position is 0 everywhere: they are not rotated.
    pub still: Vec<usize>,
}

/// Tensor by which the angles are divided, with a value for each pair of dimensions or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeFactors {
    /// `rope_freqs.weight` (llama 3 scaling, baked by the converter).
    Always,
    /// `rope_factors_long.weight` where a sequence's context exceeds this many positions, else
    /// `rope_factors_short.weight`.
    LongAbove(u32),
}

impl RopeFactors {
    /// Name of the tensor for a context of `n_ctx` positions a sequence.
    pub fn tensor(self, n_ctx: u32) -> &'static str {
        match self {
            Self::Always => "rope_freqs.weight",
            Self::LongAbove(n) if n_ctx > n => "rope_factors_long.weight",
            Self::LongAbove(_) => "rope_factors_short.weight",
        }
    }
}

/// YaRN with its ramp, which is [`YarnSpec::BETA_FAST`] and [`YarnSpec::BETA_SLOW`] for most models.
#[derive(Clone, Debug, PartialEq)]
pub struct YarnSpec {
    /// Context the frequencies were trained for, in positions.
    pub n_ctx_orig: u32,
    /// Rotations above which a pair is fully extrapolated.
    pub beta_fast: f32,
    /// Rotations below which a pair is fully interpolated.
    pub beta_slow: f32,
}

impl YarnSpec {
    /// The ramp's usual end, as llama.cpp fixes it.
    pub const BETA_FAST: f32 = 32.0;
    /// The ramp's usual beginning.
    pub const BETA_SLOW: f32 = 1.0;
}

impl RopeSpec {
    /// A rotation of the first `n_rot` values of a head, neither stretched nor with factors.
    pub fn plain(layout: RopeLayout, n_rot: usize, freq_base: f32) -> Self {
        Self {
            layout,
            n_rot,
            freq_base,
            freq_scale: 1.0,
            attn_factor: 1.0,
            yarn: None,
            factors: None,
            n_factors: n_rot / 2,
            still: Vec::new(),
        }
    }
}
