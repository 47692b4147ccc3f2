//! `llama4`. Three of four layers have attention in chunks, rotation, and norms of q and k without weights.
//! The fourth attends over all positions with none of these, and its queries grow with the position.
//!
//! Every so many layers have experts, beside a shared one. A token uses few of them or one. The router's
//! sigmoid weighs what an expert reads, not what it gives.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, MaskSpec, ModelError, ModelSpec, MoeSpec, NormOver,
    QkNorm, Rotation, Router, ScoreSpec, SharedExpertSpec, Temperature,
};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::{RopeLayout, Window};

/// Positions of an attention chunk; files have no key for it.
const CHUNK: u32 = 8192;
/// Period of layers, the last of which is not rotated.
const PERIOD: u32 = 4;
/// Queries of that layer, over chunks of positions.
const TEMPERATURE: Temperature = Temperature { scale: 0.1, every: 8192, offset: 1.0 };
/// Experts of the model (Maverick) that norms no q and k.
const WITHOUT_QK_NORM: usize = 128;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let step = hp.need_u32("interleave_moe_layer_step")? as usize;
    // A window of 0 is said by models that attend over all positions in every layer.
    let chunked = hp.u32("attention.sliding_window")? != Some(0);
    let windowed = hp.windowed_layers(PERIOD)?;
    let unrotated = if chunked { PERIOD as usize } else { hp.n_layer() };
    let layer = |il: usize| {
        let rotates = !(il + 1).is_multiple_of(unrotated);
        let attention = decoder::attention(hp, il)?;
        let n_expert = hp.need_u32("expert_count")? as usize;
        let qk_norm = (rotates && n_expert != WITHOUT_QK_NORM).then_some(QkNorm {
            eps,
            over: NormOver::HeadUnweighted,
            after_rotation: true,
        });
        let window = (chunked && windowed[il]).then_some(Window::Chunk(CHUNK));
        let temperature = (chunked && !rotates).then_some(TEMPERATURE);
        let attention = AttentionSpec {
            rotation: if rotates { Rotation::Model } else { Rotation::None },
            qk_norm,
            mask: MaskSpec { window, ..attention.mask },
            scores: ScoreSpec { temperature, ..ScoreSpec::default() },
            ..attention
        };
        let ffn = if step > 0 && (il + 1).is_multiple_of(step) {
            BlockKind::Moe(moe(hp, il)?)
        } else {
            decoder::dense(hp, il, Activation::SwiGlu)?
        };
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, decoder::rope_with_factors(hp, RopeLayout::Norm)?, layer)
}

fn moe(hp: &Hparams<'_>, il: usize) -> Result<MoeSpec, ModelError> {
    let experts = experts::read(hp, il, |_| 0)?;
    Ok(MoeSpec {
        router: Router::Sigmoid,
        norm_weights: false,
        weigh_input: true,
        weights_scale: hp.expert_weights_scale()?,
        shared: Some(SharedExpertSpec::new(experts.n_ff, Activation::SwiGlu)),
        ..experts
    })
}
