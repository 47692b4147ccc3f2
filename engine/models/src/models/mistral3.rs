//! `mistral3`: llama's block with a YaRN ramp of its own, and queries that grow with the position.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, ModelError, ModelSpec, RopeSpec, ScoreSpec, Temperature,
};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let scores = ScoreSpec { temperature: temperature(hp)?, ..ScoreSpec::default() };
    let layer = |il: usize| {
        let attention = AttentionSpec { scores: scores.clone(), ..decoder::attention(hp, il)? };
        let ffn = match hp.u32("expert_count")?.unwrap_or(0) {
            0 => decoder::dense(hp, il, Activation::SwiGlu)?,
            // There is one key for the widths of dense FFNs and of experts.
            _ => BlockKind::Moe(experts::read(hp, il, |_| decoder::n_ff(hp, il).unwrap_or(0))?),
        };
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    let rope = yarn(hp, decoder::rope_with_factors(hp, RopeLayout::Norm)?)?;
    decoder::model(hp, eps, rope, layer)
}

/// `attention.temperature_scale` over steps as long as the context the rotation was trained for.
fn temperature(hp: &Hparams<'_>) -> Result<Option<Temperature>, ModelError> {
    let scale = hp.f32("attention.temperature_scale")?.unwrap_or(0.0);
    if scale == 0.0 {
        return Ok(None);
    }
    let every = match hp.u32("rope.scaling.original_context_length")? {
        Some(n) => n,
        None => hp.need_u32("context_length")?,
    };
    if every == 0 {
        return Err(hp.bad("rope.scaling.original_context_length", "must be positive"));
    }
    Ok(Some(Temperature { scale, every, offset: 0.0 }))
}

/// The ramp's ends and the magnitude: `l(1) / l(m)` with `l(k) = 1 + 0.1 k ln(factor)` and `m` the log
/// multiplier, which is 1 where `m` is.
fn yarn(hp: &Hparams<'_>, mut rope: RopeSpec) -> Result<RopeSpec, ModelError> {
    let Some(yarn) = &mut rope.yarn else { return Ok(rope) };
    yarn.beta_fast = hp.f32("rope.scaling.yarn_beta_fast")?.unwrap_or(yarn.beta_fast);
    yarn.beta_slow = hp.f32("rope.scaling.yarn_beta_slow")?.unwrap_or(yarn.beta_slow);
    let multiplier = hp.f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
    if rope.freq_scale < 1.0 {
        rope.attn_factor /= 1.0 + 0.1 * multiplier * (1.0 / rope.freq_scale).ln();
    }
    Ok(rope)
}
