//! Rotary embedding as metadata describe it: base, scaling, YaRN, tensors of factors. (RoFormer, arXiv
//! 2104.09864; YaRN, arXiv 2309.00071. The constants that depend on the context are those of llama.cpp.)

use super::Hparams;
use crate::error::ModelError;
use crate::kernels::RopeLayout;

/// Rotary embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// How the rotated pairs lie in a head.
    pub layout: RopeLayout,
    /// Rotated dimensions of a head, from the first; even.
    pub n_rot: usize,
    /// Frequency base.
    pub freq_base: f32,
    /// Multiplies every angle (1 / scaling factor).
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

/// Which tensor `[n_rot / 2]` divides the angles.
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
    pub(super) fn plain(layout: RopeLayout, n_rot: usize, freq_base: f32) -> Self {
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

    /// Reads `rope.*`; `head_dim` is the default of `rope.dimension_count`.
    pub(super) fn read(
        hp: &Hparams<'_>,
        layout: RopeLayout,
        head_dim: usize,
        factor_tensors: bool,
    ) -> Result<Self, ModelError> {
        let n_rot = hp.u32("rope.dimension_count")?.map_or(head_dim, |n| n as usize);
        if n_rot % 2 != 0 || n_rot > head_dim {
            return Err(hp.bad(
                "rope.dimension_count",
                &format!("is {n_rot}; it must be even and at most the head's {head_dim}"),
            ));
        }
        let scaling = hp.str("rope.scaling.type")?.unwrap_or("linear");
        if !["none", "linear", "yarn", "longrope"].contains(&scaling) {
            return Err(ModelError::Unsupported(format!("rope scaling type {scaling:?}")));
        }
        let factor = match hp.f32("rope.scaling.factor")? {
            Some(factor) => factor,
            None => hp.f32("rope.scale_linear")?.unwrap_or(0.0),
        };
        let freq_scale = if factor == 0.0 || scaling == "none" { 1.0 } else { 1.0 / factor };
        let n_ctx_orig = match hp.u32("rope.scaling.original_context_length")? {
            Some(n) => n,
            None => hp.need_u32("context_length")?,
        };
        let yarn = (scaling == "yarn").then_some(YarnSpec {
            n_ctx_orig,
            beta_fast: YarnSpec::BETA_FAST,
            beta_slow: YarnSpec::BETA_SLOW,
        });
        let attn_factor = hp.f32("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let factors = match () {
            () if !factor_tensors => None,
            () if hp.has_tensor("rope_freqs.weight") => Some(RopeFactors::Always),
            () if hp.has_tensor("rope_factors_long.weight") => {
                Some(RopeFactors::LongAbove(n_ctx_orig))
            }
            () => None,
        };
        let freq_base = hp.f32("rope.freq_base")?.unwrap_or(10_000.0);
        Ok(Self {
            layout,
            n_rot,
            freq_base,
            freq_scale,
            attn_factor,
            yarn,
            factors,
            n_factors: n_rot / 2,
            still: Vec::new(),
        })
    }
}
