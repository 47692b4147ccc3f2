//! `lfm2` and `lfm2moe`. A layer with KV heads has attention with NEOX rotation and norms of each head of q
//! and k. Any other layer has a gated short convolution. An FFN follows. In lfm2moe it has experts, except in
//! the dense leading layers.

use brigade_spec::{
    AttentionSpec, BlockKind, BlockSpec, HeadSpec, LayerSpec, MlpSpec, ModelError, ModelSpec,
    MoeSpec, QkNorm, Rotation, ShortConvSpec,
};

use crate::read::attention::attention_spec;
use crate::read::{Hparams, experts, model, rope};
use brigade_shapes::{MAX_CONV_TAPS, RopeLayout};

/// The last norm goes by the embedding's name.
const HEAD_NORM: &str = "token_embd_norm.weight";

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.need_f32("attention.layer_norm_rms_epsilon")?;
    if hp.u32("attention.sliding_window")?.unwrap_or(0) > 0 {
        return Err(ModelError::Unsupported("lfm2 with a sliding window".to_owned()));
    }
    let conv_taps = hp.need_u32("shortconv.l_cache")? as usize;
    if !(2..=MAX_CONV_TAPS).contains(&conv_taps) {
        return Err(hp.bad("shortconv.l_cache", &format!("must be in 2..={MAX_CONV_TAPS}")));
    }
    let conv = BlockKind::ShortConv(ShortConvSpec { n_embd: hp.n_embd(), conv_taps });
    let n_head = hp.need_per_layer("attention.head_count")?;
    let n_kv_head = hp.need_per_layer("attention.head_count_kv")?;
    let layer = |il: usize, n_kv_head: usize| {
        let mixer = match n_kv_head {
            0 => conv.clone(),
            _ => BlockKind::Attention(AttentionSpec {
                rotation: Rotation::Model,
                qk_norm: Some(QkNorm::heads(eps)),
                ..attention_spec(hp, il)?
            }),
        };
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        let blocks = vec![block("attn_norm.weight", mixer), block("ffn_norm.weight", ffn(hp, il)?)];
        Ok(LayerSpec { blocks })
    };
    let layers = n_kv_head.iter().take(hp.n_layer()).enumerate();
    let layers = layers.map(|(il, &heads)| layer(il, heads)).collect::<Result<_, ModelError>>()?;
    let first_attention = (0..hp.n_layer()).find(|&il| n_kv_head[il] > 0);
    let rope = match first_attention.map(|il| n_head[il]) {
        Some(n_head) => {
            let (head_dim, _) = hp.head_dims(n_head)?;
            Some(rope::read(hp, RopeLayout::Neox, head_dim, false)?)
        }
        None => None,
    };
    Ok(ModelSpec {
        rope,
        head: HeadSpec { norm: Some(HEAD_NORM), ..HeadSpec::usual(eps) },
        ..model::usual(hp, layers, eps)?
    })
}

/// The FFN of a layer: dense in `lfm2` and in the leading layers of `lfm2moe`, and else experts.
fn ffn(hp: &Hparams<'_>, il: usize) -> Result<BlockKind, ModelError> {
    let dense = hp.u32("leading_dense_block_count")?.unwrap_or(0) as usize;
    if hp.arch() == "lfm2" || il < dense {
        return match hp.need_per_layer("feed_forward_length")?[il] {
            0 => Err(hp.bad("feed_forward_length", "must be positive")),
            n_ff => Ok(BlockKind::Mlp(MlpSpec::swiglu(n_ff))),
        };
    }
    let Some(router) = hp.expert_router()? else {
        return Err(hp.bad("expert_gating_func", "must be present and not 0"));
    };
    let weights_scale = hp.expert_weights_scale()?;
    let experts = experts::read(hp, il, |_| 0)?;
    let selection_bias = true;
    Ok(BlockKind::Moe(MoeSpec { router, selection_bias, weights_scale, groups: None, ..experts }))
}
