//! `grok`: scaled embeddings and logits, bounded scores, and norms before and after attention and experts.
//! The experts have tanh GELU. Grok 2 also has a dense FFN beside the experts, and divides their sum by the
//! square root of two.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, HeadSpec, MlpSpec, ModelError, ModelSpec, MoeSpec,
    RopeSpec, ScoreSpec, SharedExpertSpec,
};

use crate::read::decoder::{ATTN_NORM, FFN_NORM, POST_FFN_NORM};
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

/// Values of Grok 1, for files that do not state them.
const EMBEDDING_SCALE: f32 = 78.383_67;
const LOGIT_SCALE: f32 = 0.577_350_27;
const SCORE_SCALE: f32 = 0.088_388_35;
const SOFTCAP: f32 = 30.0;
const YARN_BETA_FAST: f32 = 8.0;
/// Norms of what attention and experts give.
const ATTENTION_OUT_NORM: &str = "attn_output_norm.weight";
const LAYER_OUT_NORM: &str = "layer_output_norm.weight";

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let number = |key, default: f32| Ok::<_, ModelError>(hp.f32(key)?.unwrap_or(default));
    let scale = number("attention.output_scale", SCORE_SCALE)?;
    let softcap = Some(number("attn_logit_softcapping", SOFTCAP)?);
    let scores = ScoreSpec { softcap, ..ScoreSpec::default() };
    let layer = |il: usize| {
        let attention =
            AttentionSpec { scale, scores: scores.clone(), ..decoder::attention(hp, il)? };
        let after = if hp.has_tensor(&format!("blk.{il}.{LAYER_OUT_NORM}")) {
            LAYER_OUT_NORM
        } else {
            POST_FFN_NORM
        };
        let before = [Some(ATTN_NORM), Some(FFN_NORM)];
        let (ffn, after) = (BlockKind::Moe(moe(hp, il)?), [ATTENTION_OUT_NORM, after]);
        Ok(decoder::layer_with_post_norms(eps, before, attention, ffn, after))
    };
    let spec = decoder::model(hp, eps, yarn(hp, decoder::rope(hp, RopeLayout::Neox)?)?, layer)?;
    let head = HeadSpec {
        logit_scale: number("logit_scale", LOGIT_SCALE)?,
        softcap: hp.f32("final_logit_softcapping")?.filter(|&cap| cap != 0.0),
        ..spec.head.clone()
    };
    let embedding_scale = number("embedding_scale", EMBEDDING_SCALE)?;
    Ok(ModelSpec { embedding_scale, head, ..spec })
}

fn moe(hp: &Hparams<'_>, il: usize) -> Result<MoeSpec, ModelError> {
    let n_ff = decoder::n_ff(hp, il)?;
    let dense = hp.has_tensor(&format!("blk.{il}.ffn_up.weight"));
    let beside = SharedExpertSpec { mlp: MlpSpec::new(n_ff, Activation::GeGlu), gated: false };
    Ok(MoeSpec {
        activation: Activation::GeGlu,
        weights_scale: hp.expert_weights_scale()?,
        shared: dense.then_some(beside),
        output_scale: if dense { std::f32::consts::FRAC_1_SQRT_2 } else { 1.0 },
        ..experts::read(hp, il, |_| n_ff)?
    })
}

/// The ramp's ends, and the share of extrapolated angles, which is 1.
fn yarn(hp: &Hparams<'_>, mut rope: RopeSpec) -> Result<RopeSpec, ModelError> {
    if hp.f32("rope.scaling.yarn_ext_factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(ModelError::Unsupported("grok with a share of extrapolated angles".to_owned()));
    }
    if let Some(yarn) = &mut rope.yarn {
        yarn.beta_fast = hp.f32("rope.scaling.yarn_beta_fast")?.unwrap_or(YARN_BETA_FAST);
        yarn.beta_slow = hp.f32("rope.scaling.yarn_beta_slow")?.unwrap_or(yarn.beta_slow);
    }
    Ok(rope)
}
