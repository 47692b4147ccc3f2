//! `minicpm3` and `plm`: DeepSeek's latent attention with dense FFNs. minicpm3 scales embedding, residual sums and
//! logits by numbers that files do not have. plm has squared ReLUs and NORM rotation.

use brigade_spec::{
    Activation, BlockKind, BlockSpec, HeadSpec, LayerSpec, MlaSpec, ModelError, ModelSpec,
    RopeSpec, Rotation,
};

use crate::read::{Hparams, decoder, mla, rope};
use brigade_shapes::RopeLayout;

/// On the embedded rows.
const EMBEDDING_SCALE: f32 = 12.0;
/// On what a block adds, over the root of the number of layers.
const DEPTH_SCALE: f32 = 1.4;
/// Logits are multiplied by this over the model's width.
const BASE_WIDTH: f32 = 256.0;

pub(super) fn describe_plm(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = rope(hp, eps, RopeLayout::Norm, false)?;
    decoder::model(hp, eps, rope, |il| layer(hp, eps, il, 1.0, Activation::ReluSquared))
}

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = rope(hp, eps, RopeLayout::Neox, true)?;
    let residual_scale = DEPTH_SCALE / (hp.n_layer() as f32).sqrt();
    let layer = |il: usize| layer(hp, eps, il, residual_scale, Activation::SwiGlu);
    let spec = decoder::model(hp, eps, rope, layer)?;
    let logit_scale = BASE_WIDTH / hp.n_embd() as f32;
    let head = HeadSpec { logit_scale, ..spec.head.clone() };
    Ok(ModelSpec { embedding_scale: EMBEDDING_SCALE, head, ..spec })
}

/// The rotation of the pe parts.
fn rope(
    hp: &Hparams<'_>,
    eps: f32,
    layout: RopeLayout,
    factors: bool,
) -> Result<RopeSpec, ModelError> {
    let widest = mla::read(hp, 0, eps)?;
    rope::read(hp, layout, widest.n_nope + widest.n_pe, factors)
}

fn layer(
    hp: &Hparams<'_>,
    eps: f32,
    il: usize,
    residual_scale: f32,
    activation: Activation,
) -> Result<LayerSpec, ModelError> {
    let attention = MlaSpec { rotation: Rotation::Model, ..mla::read(hp, il, eps)? };
    let ffn = decoder::dense(hp, il, activation)?;
    let residual = decoder::scaled_output(residual_scale);
    let block = |norm, kind| BlockSpec { residual, ..BlockSpec::new(norm, eps, kind) };
    let attention = block(decoder::ATTN_NORM, BlockKind::Mla(attention));
    Ok(LayerSpec { blocks: vec![attention, block(decoder::FFN_NORM, ffn)] })
}
