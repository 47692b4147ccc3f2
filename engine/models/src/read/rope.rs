//! Reads what metadata say about rotary embedding.

use brigade_spec::{ModelError, RopeFactors, RopeSpec, YarnSpec};

use super::hparams::Hparams;
use brigade_shapes::RopeLayout;

/// Reads `rope.*`; `head_dim` is the default of `rope.dimension_count`.
pub(crate) fn read(
    hp: &Hparams<'_>,
    layout: RopeLayout,
    head_dim: usize,
    factor_tensors: bool,
) -> Result<RopeSpec, ModelError> {
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
        () if hp.has_tensor("rope_factors_long.weight") => Some(RopeFactors::LongAbove(n_ctx_orig)),
        () => None,
    };
    let freq_base = hp.f32("rope.freq_base")?.unwrap_or(10_000.0);
    Ok(RopeSpec {
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
