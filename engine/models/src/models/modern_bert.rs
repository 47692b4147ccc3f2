//! `modern-bert`: LayerNorms without biases before the blocks and behind the embedding, one tensor for gate and way up.
//! One layer in three sees all of the text; the others see a window, and rotate differently.

use brigade_spec::{
    Activation, BlockKind, BlockSpec, LayerSpec, MlpSpec, ModelError, ModelSpec, NormKind,
    Rotation, Skeleton,
};

use crate::read::decoder::{ATTN_NORM, FFN_NORM};
use crate::read::encoder::{Full, Windows};
use crate::read::{Hparams, decoder, encoder};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let windows = Windows::read(hp, 3, Full::First, &rope)?;
    let activation = activation(hp)?;
    let layer = |il: usize| {
        let attention = windows.apply(il, encoder::attention(hp, il, Rotation::Model)?);
        let ffn = MlpSpec { fused: true, ..MlpSpec::new(decoder::n_ff(hp, il)?, activation) };
        let attention = BlockSpec::new(ATTN_NORM, eps, BlockKind::Attention(attention));
        // The embedding's norm stands right before the first layer, which has none then.
        let has_norm = il > 0 || hp.has_tensor(&format!("blk.0.{ATTN_NORM}"));
        let attention = BlockSpec { norm: attention.norm.filter(|_| has_norm), ..attention };
        let ffn = BlockSpec::new(FFN_NORM, eps, BlockKind::Mlp(ffn));
        Ok(LayerSpec { blocks: vec![attention, ffn] })
    };
    let spec = decoder::model(hp, eps, rope.clone(), layer)?;
    let skeleton = Skeleton {
        norm: NormKind::LayerUnbiased,
        embedding_norm: Some(NormKind::LayerUnbiased),
        ..Skeleton::default()
    };
    Ok(ModelSpec { skeleton, local_rope: windows.local_rope.clone(), ..spec })
}

/// `hidden_activation`, GELU where it is missing.
fn activation(hp: &Hparams<'_>) -> Result<Activation, ModelError> {
    const KEY: &str = "hidden_activation";
    match hp.str(KEY)? {
        None | Some("gelu") => Ok(Activation::GeGlu),
        Some("silu" | "swish") => Ok(Activation::SwiGlu),
        Some(other) => Err(hp.bad(KEY, &format!("is {other:?}; known are gelu and silu"))),
    }
}
