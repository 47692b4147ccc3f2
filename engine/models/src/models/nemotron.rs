//! `nemotron_h` and `nemotron_h_moe`. Each layer is a single block behind one norm: a Mamba-2 mixer, or
//! attention without rotation, or an FFN of squared ReLUs (dense, or with experts). A block that drafts has attention and
//! experts, whatever the layers before it have.

use brigade_spec::{
    Activation, BlockKind, BlockSpec, DraftInput, LatentSpec, LayerSpec, MlpSpec, ModelError,
    ModelSpec, MoeSpec, NormKind, Router, SharedExpertSpec,
};

use crate::read::attention::attention_spec;
use crate::read::own_drafts::{self, DraftBlocks, with_blocks};
use crate::read::{Hparams, experts, mamba2, model};

/// The architecture whose block of drafts runs.
const DRAFTS: &str = "nemotron_h_moe";

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = match hp.f32("attention.layer_norm_rms_epsilon")? {
        Some(eps) => eps,
        None => hp.need_f32("attention.layer_norm_epsilon")?,
    };
    let n_kv_head = hp.need_per_layer("attention.head_count_kv")?;
    let n_ff = hp.need_per_layer("feed_forward_length")?;
    let layer = |il: usize| {
        let kind = match (n_ff[il], n_kv_head[il]) {
            (0, 0) => BlockKind::Mamba2(mamba2::mixer(hp, il, eps)?),
            (0, _) => BlockKind::Attention(attention_spec(hp, il)?),
            (n_ff, _) => ffn(hp, il, n_ff)?,
        };
        let norm = "attn_norm.weight";
        let block = BlockSpec::new(norm, eps, kind);
        Ok(LayerSpec { blocks: vec![block] })
    };
    let layers = (0..hp.n_layer()).map(layer).collect::<Result<_, ModelError>>()?;
    let spec = model::usual(hp, layers, eps)?;
    match hp.arch() {
        DRAFTS => Ok(with_drafts(hp, spec, &n_ff, eps)),
        _ => Ok(spec),
    }
}

/// With its block of drafts, whose norm is another than the model's.
fn with_drafts(hp: &Hparams<'_>, spec: ModelSpec, n_ff: &[usize], eps: f32) -> ModelSpec {
    let layer = |il: usize| {
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        let attention = BlockKind::Attention(attention_spec(hp, il)?);
        let ffn = block("post_attention_norm.weight", ffn(hp, il, n_ff[il])?);
        Ok(LayerSpec { blocks: vec![block("attn_norm.weight", attention), ffn] })
    };
    let spec = with_blocks(hp, spec, DraftBlocks::One, DraftInput::Normed, layer);
    own_drafts::with_heads(spec, |head| {
        let eps = hp.need_f32("attention.layer_norm_epsilon")?;
        head.own_norm = Some((NormKind::LayerUnbiased, eps));
        own_drafts::need_norm(head)
    })
}

/// Dense, or experts where layer `il` has a router: sigmoid with a bias on the choice, experts that
/// may work in a narrower space, a shared one.
fn ffn(hp: &Hparams<'_>, il: usize, n_ff: usize) -> Result<BlockKind, ModelError> {
    let activation = Activation::ReluSquared;
    if !hp.has_tensor(&format!("blk.{il}.ffn_gate_inp.weight")) {
        return Ok(BlockKind::Mlp(MlpSpec::new(n_ff, activation)));
    }
    let shared = hp.need_u32("expert_shared_feed_forward_length")? as usize;
    let latent = hp.u32("moe_latent_size")?.filter(|&n| n > 0).map(|n| LatentSpec {
        width: n as usize,
        stem: "latent",
        norm_eps: None,
    });
    Ok(BlockKind::Moe(MoeSpec {
        activation,
        router: Router::Sigmoid,
        selection_bias: true,
        norm_weights: hp.bool("expert_weights_norm")?.unwrap_or(false),
        weights_scale: hp.expert_weights_scale()?,
        latent,
        shared: Some(SharedExpertSpec::new(shared, activation)),
        ..experts::read(hp, il, |n_used| n_ff / n_used)?
    }))
}
