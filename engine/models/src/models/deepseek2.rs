//! `deepseek2` (DeepSeek-V2, V3 and R1, and models that share their blocks: Kimi K2, GLM-4.7-flash, GigaChat3) and
//! `mistral4`. They have latent attention. The leading layers have dense FFNs, the others experts beside
//! shared ones. (arXiv 2405.04434, arXiv 2412.19437.) In some, queries grow with the position.

use brigade_spec::{
    Activation, BlockKind, BlockSpec, ChosenSpec, DraftInput, LayerSpec, MlaSpec, MlpSpec,
    ModelError, ModelSpec, MoeSpec, RopeSpec, Rotation, Router, SharedExpertSpec, TOKEN_EMBD,
    Temperature,
};

use crate::read::own_drafts::{DraftBlocks, with_blocks};
use crate::read::{Hparams, experts, mla, model, rope};
use brigade_shapes::RopeLayout;

/// The architecture that rotates without magnitude, whatever its log multiplier is.
const OWN: &str = "deepseek2";
/// Architectures whose blocks of drafts run.
const DRAFTS: [&str; 3] = [OWN, "deepseek32", "glm-dsa"];
/// Converters write the YaRN log multiplier times this.
const LOG_MULTIPLIER_UNIT: f32 = 0.1;
/// Layers and vocabulary of GLM-4.7-flash, whose files do not name their sigmoid router.
const GLM_FLASH: (std::ops::RangeInclusive<usize>, usize) = (47..=48, 154_880);

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    describe_with(hp, Router::Softmax, |_, _| Ok(None))
}

/// The same with positions that are chosen: `chosen` says so of each layer's block, and of one that drafts. `router` stands
/// in where the file names none.
pub(super) fn describe_with(
    hp: &Hparams<'_>,
    router: Router,
    chosen: impl Fn(usize, &MlaSpec) -> Result<Option<ChosenSpec>, ModelError>,
) -> Result<ModelSpec, ModelError> {
    let eps = hp.need_f32("attention.layer_norm_rms_epsilon")?;
    let temperature = temperature(hp)?;
    let n_vocab = hp.n_vocab(TOKEN_EMBD)?;
    let n_dense = hp.u32("leading_dense_block_count")?.unwrap_or(0) as usize;
    let widest = mla::read(hp, 0, eps)?;
    let mut rope = rope::read(hp, RopeLayout::Norm, widest.n_nope + widest.n_pe, false)?;
    let attention_scale = yarn_scales(hp, &mut rope)?;
    let layer = |il: usize| {
        let attention = mla::read(hp, il, eps)?;
        let scale = attention.scale * attention_scale;
        let chosen = chosen(il, &attention)?;
        let attention =
            MlaSpec { scale, rotation: Rotation::Model, temperature, chosen, ..attention };
        let attention = BlockKind::Mla(attention);
        let ffn = if il < n_dense { dense(hp, il)? } else { moe(hp, il, n_vocab, router)? };
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        let blocks = vec![block("attn_norm.weight", attention), block("ffn_norm.weight", ffn)];
        Ok::<_, ModelError>(LayerSpec { blocks })
    };
    let layers = (0..hp.n_layer()).map(&layer).collect::<Result<_, _>>()?;
    let spec = ModelSpec { rope: Some(rope), ..model::usual(hp, layers, eps)? };
    let drafts = DRAFTS.contains(&hp.arch()) && temperature.is_none() && widest.q_rank.is_some();
    if !drafts {
        return Ok(spec);
    }
    Ok(with_blocks(hp, spec, DraftBlocks::One, DraftInput::Normed, layer))
}

/// `attention.temperature_scale` over steps of `attention.temperature_length` positions.
fn temperature(hp: &Hparams<'_>) -> Result<Option<Temperature>, ModelError> {
    const LENGTH: &str = "attention.temperature_length";
    let scale = hp.f32("attention.temperature_scale")?.unwrap_or(0.0);
    if scale == 0.0 {
        return Ok(None);
    }
    match hp.need_u32(LENGTH)? {
        0 => Err(hp.bad(LENGTH, "must be positive")),
        every => Ok(Some(Temperature { scale, every, offset: 0.0 })),
    }
}

/// Sets the rotation's magnitude as these models want it and returns the factor on their scores.
///
/// Let `m` be the log multiplier and `l(k) = 1 + 0.1 k ln(factor)`. A deepseek2 that has an `m` rotates without
/// magnitude and multiplies its scores by `l(m)²`. In other models the rotation's magnitude is `l(1) / l(m)`, and
/// scores are multiplied by the square of `l(1)`. A model without one rotates with the magnitude `l(1)`, which then
/// also counts for the part that is not rotated.
fn yarn_scales(hp: &Hparams<'_>, rope: &mut RopeSpec) -> Result<f32, ModelError> {
    let multiplier =
        hp.f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0) / LOG_MULTIPLIER_UNIT;
    let ln_factor = (1.0 / rope.freq_scale).ln();
    let plain = 1.0 + 0.1 * ln_factor;
    if rope.yarn.is_some() {
        // The rotation multiplies by `plain` by itself.
        let wanted = match multiplier {
            0.0 => plain.max(1.0),
            m if hp.arch() == OWN && m != 1.0 => 1.0,
            m => plain.max(1.0) / (1.0 + 0.1 * m * ln_factor).max(1.0),
        };
        rope.attn_factor *= wanted / plain;
    }
    let magnitude = rope.attn_factor * plain * (1.0 + 0.1 * multiplier * ln_factor);
    Ok(magnitude * magnitude)
}

pub(super) fn dense(hp: &Hparams<'_>, il: usize) -> Result<BlockKind, ModelError> {
    let n_ff = hp.need_per_layer("feed_forward_length")?[il];
    if n_ff == 0 {
        return Err(hp.bad("feed_forward_length", "must be positive"));
    }
    Ok(BlockKind::Mlp(MlpSpec::swiglu(n_ff)))
}

fn moe(
    hp: &Hparams<'_>,
    il: usize,
    n_vocab: usize,
    router: Router,
) -> Result<BlockKind, ModelError> {
    let glm_flash = GLM_FLASH.0.contains(&hp.n_layer()) && n_vocab == GLM_FLASH.1;
    let default = if glm_flash { Router::Sigmoid } else { router };
    let router = hp.expert_router()?.unwrap_or(default);
    Ok(BlockKind::Moe(shared_and_routed(hp, il, router)?))
}

/// Experts beside shared ones, as these models and those that came of them have them.
pub(super) fn shared_and_routed(
    hp: &Hparams<'_>,
    il: usize,
    router: Router,
) -> Result<MoeSpec, ModelError> {
    let experts = experts::read(hp, il, |_| 0)?;
    let n_shared = hp.need_u32("expert_shared_count")? as usize;
    Ok(MoeSpec {
        router,
        selection_bias: hp.has_tensor(&format!("blk.{il}.exp_probs_b.bias")),
        norm_weights: hp.bool("expert_weights_norm")?.unwrap_or(false),
        weights_scale: hp.expert_weights_scale()?,
        shared: (n_shared > 0)
            .then(|| SharedExpertSpec::new(n_shared * experts.n_ff, Activation::SwiGlu)),
        ..experts
    })
}
