//! `chameleon`: llama's block in NORM layout; each head of q and k is normed with the mean taken off, with weights of its
//! own. In the large model (`swin_norm`) what attention and FFN give is normed, not what they read.
//!
//! Tokens of the vocabulary stand for pieces of images. Their logits are masked, so that the model writes text.

use std::ops::Range;

use brigade_spec::{Activation, AttentionSpec, HeadSpec, ModelError, ModelSpec, NormOver, QkNorm};

use crate::read::decoder::{ATTN_NORM, FFN_NORM};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

/// Tokens that stand for pieces of images.
const IMAGE_TOKENS: Range<usize> = 4..8196;
/// Epsilon of the norms of q and k, which files do not say.
const QK_EPS: f32 = 1e-5;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let norms_outputs = hp.bool("swin_norm")?.unwrap_or(false);
    let qk_norm = Some(QkNorm { over: NormOver::HeadLayer, ..QkNorm::heads(QK_EPS) });
    let layer = |il: usize| {
        let attention =
            AttentionSpec { qk_norm, output_bias: false, ..decoder::attention(hp, il)? };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(if norms_outputs {
            let after = [ATTN_NORM, FFN_NORM];
            decoder::layer_with_post_norms(eps, [None; 2], attention, ffn, after)
        } else {
            decoder::layer(eps, attention, FFN_NORM, ffn)
        })
    };
    let spec = decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Norm)?, layer)?;
    if spec.n_vocab < IMAGE_TOKENS.end {
        return Err(ModelError::Bad(format!(
            "{} tokens, and those from {} to {} stand for images in a chameleon: is it of another architecture?",
            spec.n_vocab, IMAGE_TOKENS.start, IMAGE_TOKENS.end
        )));
    }
    Ok(ModelSpec { head: HeadSpec { masked: IMAGE_TOKENS, ..spec.head.clone() }, ..spec })
}
