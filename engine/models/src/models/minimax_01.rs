//! `minimax-01` (MiniMax-Text-01, MiniMax-M1; arXiv 2501.08313): layers with lightning attention, and every eighth with
//! softmax attention; experts in all of them.
//!
//! A block adds its output not to the stream as it came, but to its own input: the normed rows, scaled.

use brigade_spec::{
    BlockKind, BlockSpec, LayerSpec, LightningSpec, ModelError, ModelSpec, MoeSpec, Residual,
    Router,
};

use super::qwen_next;
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

/// Every this many layers one has softmax attention, where the file does not say.
const DEFAULT_INTERVAL: u32 = 8;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let scale = hp.need_f32("residual_scale")?;
    let recurrent = qwen_next::recurrent_layers(hp, DEFAULT_INTERVAL)?;
    let n_layer = hp.n_layer();
    let layer = |il: usize| {
        let mixer = if recurrent[il] {
            BlockKind::Lightning(lightning(hp, il, n_layer, eps)?)
        } else {
            BlockKind::Attention(decoder::attention(hp, il)?)
        };
        let block = |norm, kind| BlockSpec {
            residual: Residual::FromNorm { scale },
            ..BlockSpec::new(norm, eps, kind)
        };
        let ffn = block(decoder::FFN_NORM, BlockKind::Moe(moe(hp, il)?));
        Ok(LayerSpec { blocks: vec![block(decoder::ATTN_NORM, mixer), ffn] })
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

fn lightning(
    hp: &Hparams<'_>,
    il: usize,
    n_layer: usize,
    eps: f32,
) -> Result<LightningSpec, ModelError> {
    let n_head = hp.need_per_layer("attention.head_count")?[il];
    let (head_dim, head_dim_v) = hp.head_dims(n_head)?;
    if head_dim_v != head_dim || n_head == 0 || head_dim == 0 {
        let problem = format!("{n_head} heads with keys of {head_dim} and values of {head_dim_v}");
        return Err(hp.bad("attention.key_length", &problem));
    }
    if n_layer < 2 {
        return Err(hp.bad("block_count", "must be 2 at least: layers forget at different paces"));
    }
    let layer_share = 1.0 - il as f32 / (n_layer - 1) as f32;
    Ok(LightningSpec { n_head, head_dim, layer_share, eps })
}

fn moe(hp: &Hparams<'_>, il: usize) -> Result<MoeSpec, ModelError> {
    let n_ff = hp.need_per_layer("feed_forward_length")?[il];
    let experts = experts::read(hp, il, |_| n_ff)?;
    Ok(MoeSpec { router: Router::Softmax, norm_weights: true, ..experts })
}
