//! `gemma-embedding`: Gemma 3's block in which each row sees all of its text. One layer in six does so; in the others it
//! sees a window on both sides, and another rotation. The matrices that its vectors go through are a head
//! ([`brigade_spec::heads::PROJECTIONS`]).

use brigade_spec::{Activation, AttentionSpec, ModelError, ModelSpec, QkNorm, Rotation};

use crate::read::decoder::{ATTN_NORM, FFN_NORM, POST_ATTENTION_NORM, POST_FFN_NORM};
use crate::read::encoder::{Full, Windows};
use crate::read::{Hparams, decoder, encoder};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let windows = Windows::read(hp, 6, Full::Last, &rope)?;
    let layer = |il: usize| {
        let attention = AttentionSpec {
            output_bias: false,
            qk_norm: Some(QkNorm::heads(eps)),
            ..encoder::attention(hp, il, Rotation::Model)?
        };
        let ffn = decoder::dense(hp, il, Activation::GeGlu)?;
        let (before, after) =
            ([Some(ATTN_NORM), Some(FFN_NORM)], [POST_ATTENTION_NORM, POST_FFN_NORM]);
        let attention = windows.apply(il, attention);
        Ok(decoder::layer_with_post_norms(eps, before, attention, ffn, after))
    };
    let spec = decoder::model(hp, eps, rope.clone(), layer)?;
    let embedding_scale = (spec.n_embd as f32).sqrt();
    Ok(ModelSpec { embedding_scale, local_rope: windows.local_rope.clone(), ..spec })
}
