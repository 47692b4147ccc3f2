//! `glm4` and `glm4moe`. Both rotate a part of each head: glm4 by NORM, glm4moe by NEOX. Where a file divides
//! that part among the axes of a picture, both rotate by NEOX.
//!
//! glm4 also norms the outputs of attention and FFN. glm4moe has experts behind dense leading layers, and
//! some of its models norm each head of q and k.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, DraftInput, MlpSpec, ModelError, ModelSpec, QkNorm,
    RopeSpec, Router,
};

use crate::read::decoder::{
    ATTN_NORM, FFN_NORM, POST_ATTENTION_NORM, POST_FFN_NORM, deepseek_experts,
};
use crate::read::own_drafts::{DraftBlocks, with_blocks};
use crate::read::sections::{SectionOrder, Sections};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

pub(super) fn describe_glm4(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
        let ffn = MlpSpec { fused: true, ..MlpSpec::swiglu(decoder::n_ff(hp, il)?) };
        let before = [Some(ATTN_NORM), Some(FFN_NORM)];
        let after = [POST_ATTENTION_NORM, POST_FFN_NORM];
        let ffn = BlockKind::Mlp(ffn);
        Ok(decoder::layer_with_post_norms(eps, before, attention, ffn, after))
    };
    decoder::model(hp, eps, rope(hp, RopeLayout::Norm)?, layer)
}

pub(super) fn describe_glm4moe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let n_dense = decoder::n_dense(hp)?;
    let layer = |il: usize| {
        let qk_norm = hp.has_tensor(&format!("blk.{il}.attn_q_norm.weight"));
        let attention = AttentionSpec {
            qk_norm: qk_norm.then_some(QkNorm::heads(eps)),
            output_bias: false,
            ..decoder::attention(hp, il)?
        };
        let ffn = if il < n_dense {
            decoder::dense(hp, il, Activation::SwiGlu)?
        } else {
            BlockKind::Moe(deepseek_experts(hp, il, Router::Sigmoid, None)?)
        };
        Ok(decoder::layer(eps, attention, POST_ATTENTION_NORM, ffn))
    };
    let spec = decoder::model(hp, eps, rope(hp, RopeLayout::Neox)?, layer)?;
    match &spec.rope {
        // Blocks of files for pictures are not known to rotate as the layers do.
        Some(rope) if !rope.still.is_empty() => Ok(spec),
        _ => Ok(with_blocks(hp, spec, DraftBlocks::One, DraftInput::Normed, layer)),
    }
}

/// The rotation: `plain`, or of pairs in sections, which lie half the rotated part apart.
fn rope(hp: &Hparams<'_>, plain: RopeLayout) -> Result<RopeSpec, ModelError> {
    match Sections::read(hp)?.filter(|sections| sections.has_axes()) {
        Some(sections) => {
            Ok(sections.of_text(decoder::rope(hp, RopeLayout::Neox)?, SectionOrder::Behind))
        }
        None => decoder::rope(hp, plain),
    }
}
