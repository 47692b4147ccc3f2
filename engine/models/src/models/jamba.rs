//! `jamba`. A layer with KV heads has attention without rotation. Any other layer has a Mamba mixer with
//! weighted norms of Δ, B and C. An FFN follows, with experts where the layer has a router.

use brigade_spec::{
    BlockKind, BlockSpec, LayerSpec, MambaNorms, MlpSpec, ModelError, ModelSpec, MoeSpec,
};

use super::mamba;
use crate::read::attention::attention_spec;
use crate::read::{Hparams, experts, model};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.need_f32("attention.layer_norm_rms_epsilon")?;
    let mixer = BlockKind::Mamba(mamba::mixer(hp, Some(MambaNorms { eps, weighted: true }))?);
    let n_kv_head = hp.need_per_layer("attention.head_count_kv")?;
    let layer = |il: usize, n_kv_head: usize| {
        let mixer = match n_kv_head {
            0 => mixer.clone(),
            _ => BlockKind::Attention(attention_spec(hp, il)?),
        };
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        let blocks = vec![block("attn_norm.weight", mixer), block("ffn_norm.weight", ffn(hp, il)?)];
        Ok(LayerSpec { blocks })
    };
    let layers = n_kv_head.iter().take(hp.n_layer()).enumerate();
    let layers = layers.map(|(il, &heads)| layer(il, heads)).collect::<Result<_, ModelError>>()?;
    model::usual(hp, layers, eps)
}

/// Experts, unnormed, where layer `il` has a router; else a dense FFN.
fn ffn(hp: &Hparams<'_>, il: usize) -> Result<BlockKind, ModelError> {
    let n_ff = hp.need_per_layer("feed_forward_length")?[il];
    if n_ff == 0 {
        return Err(hp.bad("feed_forward_length", "must be positive"));
    }
    if !hp.has_tensor(&format!("blk.{il}.ffn_gate_inp.weight")) {
        return Ok(BlockKind::Mlp(MlpSpec::swiglu(n_ff)));
    }
    let experts = experts::read(hp, il, |_| n_ff)?;
    Ok(BlockKind::Moe(MoeSpec { norm_weights: false, groups: None, ..experts }))
}
