//! `kimi-linear`. A layer with KV heads has latent attention without rotation. Any other layer has Kimi delta
//! attention. FFNs are dense in the leading layers. After them come experts behind a router, beside a
//! shared expert. (arXiv 2510.26692.)

use brigade_gguf::GgufError;
use brigade_spec::{
    Activation, BlockKind, BlockSpec, KdaGates, KdaSpec, LayerSpec, MlpSpec, ModelError, ModelSpec,
    MoeSpec, OUTPUT, SharedExpertSpec,
};

use crate::read::{Hparams, experts, mla, model};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.need_f32("attention.layer_norm_rms_epsilon")?;
    if !hp.has_tensor(OUTPUT) {
        return Err(GgufError::MissingTensor { name: OUTPUT.to_owned() }.into());
    }
    let n_kv_head = hp.need_per_layer("attention.head_count_kv")?;
    let n_dense = hp.u32("leading_dense_block_count")?.unwrap_or(0) as usize;
    let mut layers = Vec::with_capacity(hp.n_layer());
    for (il, n_kv_head) in n_kv_head.into_iter().enumerate().take(hp.n_layer()) {
        let mixer = match n_kv_head {
            0 => BlockKind::Kda(kda(hp, il, eps)?),
            _ => BlockKind::Mla(mla::read(hp, il, eps)?),
        };
        let ffn = if il < n_dense { dense(hp, il)? } else { moe(hp, il)? };
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        layers.push(LayerSpec {
            blocks: vec![block("attn_norm.weight", mixer), block("ffn_norm.weight", ffn)],
        });
    }
    model::usual(hp, layers, eps)
}

pub(super) fn kda(hp: &Hparams<'_>, il: usize, eps: f32) -> Result<KdaSpec, ModelError> {
    let n_head = hp.need_per_layer("attention.head_count")?[il];
    let head_dim = hp.need_u32("kda.head_dim")? as usize;
    if n_head == 0 || head_dim == 0 {
        return Err(hp.bad("kda.head_dim", "there must be heads, and none may be empty"));
    }
    Ok(KdaSpec {
        n_head,
        head_dim,
        conv_taps: hp.conv_taps("ssm.conv_kernel")?,
        eps,
        unit_eps: eps,
        decay_bound: None,
        gates: KdaGates::LowRank,
    })
}

fn dense(hp: &Hparams<'_>, il: usize) -> Result<BlockKind, ModelError> {
    let n_ff = hp.need_per_layer("feed_forward_length")?[il];
    if n_ff == 0 {
        return Err(hp.bad("feed_forward_length", "must be positive"));
    }
    Ok(BlockKind::Mlp(MlpSpec::swiglu(n_ff)))
}

fn moe(hp: &Hparams<'_>, il: usize) -> Result<BlockKind, ModelError> {
    let experts = experts::read(hp, il, |_| 0)?;
    let n_shared = hp.need_u32("expert_shared_count")? as usize;
    let Some(router) = hp.expert_router()? else {
        return Err(hp.bad("expert_gating_func", "must be present and not 0"));
    };
    let shared = SharedExpertSpec::new(n_shared * experts.n_ff, Activation::SwiGlu);
    Ok(BlockKind::Moe(MoeSpec {
        router,
        selection_bias: true,
        weights_scale: hp.expert_weights_scale()?,
        shared: (n_shared > 0).then_some(shared),
        ..experts
    }))
}
