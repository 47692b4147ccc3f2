//! `minicpm3`: DeepSeek's latent attention with dense FFNs. Embedding, residual sums and logits are scaled by numbers
//! that files do not have.

use super::{
    Activation, BlockKind, BlockSpec, HeadSpec, Hparams, LayerSpec, MlaSpec, ModelSpec, RopeSpec,
    decoder, mla,
};
use crate::error::ModelError;
use crate::kernels::RopeLayout;

/// On the embedded rows.
const EMBEDDING_SCALE: f32 = 12.0;
/// On what a block adds, over the root of the number of layers.
const DEPTH_SCALE: f32 = 1.4;
/// Logits are multiplied by this over the model's width.
const BASE_WIDTH: f32 = 256.0;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let widest = mla::read(hp, 0, eps)?;
    let rope = RopeSpec::read(hp, RopeLayout::Neox, widest.n_nope + widest.n_pe, true)?;
    let residual_scale = DEPTH_SCALE / (hp.n_layer() as f32).sqrt();
    let spec = decoder::model(hp, eps, rope, |il| {
        let attention = MlaSpec { rope: true, ..mla::read(hp, il, eps)? };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        let block = |norm, kind| BlockSpec { residual_scale, ..BlockSpec::new(norm, eps, kind) };
        let attention = block(decoder::ATTN_NORM, BlockKind::Mla(attention));
        Ok(LayerSpec { blocks: vec![attention, block(decoder::FFN_NORM, ffn)] })
    })?;
    let logit_scale = BASE_WIDTH / hp.n_embd() as f32;
    let head = HeadSpec { logit_scale, ..spec.head.clone() };
    Ok(ModelSpec { embedding_scale: EMBEDDING_SCALE, head, ..spec })
}
