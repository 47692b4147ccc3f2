//! `plamo2` (PLaMo 2): Mamba-2 mixers in turn with attention, a fused FFN in every layer, and norms before and behind
//! each. Mixers make B, C and time steps of x. Each head of attention has norms with weights of its own.
//!
//! Attention rotates, as the model was trained. llama.cpp does so only where the first layer has attention, since it
//! takes the rotation's width from that layer's heads.

use brigade_spec::{
    AttentionSpec, BlockKind, BlockSpec, LayerSpec, LowRankSteps, Mamba2Spec, MlpSpec, ModelError,
    ModelSpec, NormOver, NormSpec, QkNorm,
};

use crate::read::decoder::{ATTN_NORM, FFN_NORM};
use crate::read::{Hparams, decoder, mamba2};
use brigade_shapes::RopeLayout;

/// Time steps come from rows this many times narrower than the model, but not narrower than [`LEAST_STEPS`].
const STEPS_SHARE: usize = 16;
const LEAST_STEPS: usize = 64;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let n_kv_head = hp.need_per_layer("attention.head_count_kv")?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    decoder::model(hp, eps, rope, |il| {
        let mixer = match n_kv_head[il] {
            0 => BlockKind::Mamba2(mixer(hp, eps)?),
            _ => {
                let qk_norm = QkNorm { over: NormOver::HeadOwn, ..QkNorm::heads(eps) };
                let attention = decoder::attention(hp, il)?;
                let scale = 1.0 / (attention.head_dim_v as f32).sqrt();
                let qk_norm = Some(qk_norm);
                BlockKind::Attention(AttentionSpec { qk_norm, scale, ..attention })
            }
        };
        let ffn = MlpSpec { fused: true, ..MlpSpec::swiglu(decoder::n_ff(hp, il)?) };
        // Files have the norms behind blocks without the usual end of a name.
        let block = |norm, post_norm, kind| BlockSpec {
            post_norm: Some(NormSpec { weight: post_norm, eps }),
            ..BlockSpec::new(norm, eps, kind)
        };
        let mixer = block(ATTN_NORM, "post_attention_norm", mixer);
        Ok(LayerSpec { blocks: vec![mixer, block(FFN_NORM, "post_ffw_norm", BlockKind::Mlp(ffn))] })
    })
}

fn mixer(hp: &Hparams<'_>, eps: f32) -> Result<Mamba2Spec, ModelError> {
    if hp.u32("ssm.group_count")?.unwrap_or(0) != 0 {
        return Err(hp.bad("ssm.group_count", "must be 0: all heads share B and C"));
    }
    let width = (hp.n_embd() / STEPS_SHARE).max(LEAST_STEPS);
    let low_rank = Some(LowRankSteps { width, eps });
    Ok(Mamba2Spec { low_rank, ..mamba2::mixer_of_groups(hp, 1)? })
}
