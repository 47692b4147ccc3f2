//! `plamo` and `plamo3`. In plamo, attention and FFN read the same normed rows. plamo3 has norms before and behind
//! each block and of each head of q and k, a fused FFN, and windows in seven of eight layers, which rotate by a base of
//! their own. Both have NEOX rotation.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, BlockSpec, LayerSpec, MlpSpec, ModelError, ModelSpec,
    QkNorm, Reads, RopeSpec,
};

use crate::read::decoder::{ATTN_NORM, FFN_NORM, Windows};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

/// Base of plamo3's windowed layers where the file does not say.
const LOCAL_BASE: f32 = 10_000.0;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
        let attention = BlockSpec::new(ATTN_NORM, eps, BlockKind::Attention(attention));
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        let ffn = BlockSpec { reads: Reads::AsBefore, ..BlockSpec::new(ATTN_NORM, eps, ffn) };
        Ok(LayerSpec { blocks: vec![attention, ffn] })
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

pub(super) fn describe_3(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let local = RopeSpec { freq_base: LOCAL_BASE, freq_scale: 1.0, ..rope.clone() };
    let windows = Windows::read(hp, hp.window()?, 8, &rope, local)?;
    let layer = |il: usize| {
        let attention = AttentionSpec {
            qk_norm: Some(QkNorm::heads(eps)),
            output_bias: false,
            ..windows.apply(il, decoder::attention(hp, il)?)
        };
        let ffn = MlpSpec { fused: true, ..MlpSpec::swiglu(decoder::n_ff(hp, il)?) };
        // Files have the norms behind blocks without the usual end of a name.
        let (before, after) =
            ([Some(ATTN_NORM), Some(FFN_NORM)], ["post_attention_norm", "post_ffw_norm"]);
        Ok(decoder::layer_with_post_norms(eps, before, attention, BlockKind::Mlp(ffn), after))
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    Ok(ModelSpec { local_rope: windows.local_rope, ..spec })
}
