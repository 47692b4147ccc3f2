//! `ernie4_5` and `ernie4_5-moe`: llama's block with NORM rotation. `paddleocr` is the text of a model that reads images
//! too: ernie4_5 with NEOX rotation of pairs in sections.
//!
//! ernie4_5-moe has dense leading layers. After them, every so many layers have experts, beside a shared one
//! with a width of its own. A bias takes part in the choice of experts, and their weights are normed.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, ModelError, ModelSpec, MoeSpec, RopeSpec,
    SharedExpertSpec,
};

use crate::read::decoder::FFN_NORM;
use crate::read::sections::{SectionOrder, Sections};
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, decoder::rope(hp, RopeLayout::Norm)?, |_| Ok(None))
}

pub(super) fn describe_paddleocr(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let rope = Sections::need(hp)?.check(hp, &rope)?.of_text(rope, SectionOrder::Behind);
    build(hp, rope, |_| Ok(None))
}

pub(super) fn describe_moe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let n_dense = decoder::n_dense(hp)?;
    let step = hp.need_u32("interleave_moe_layer_step")? as usize;
    if step == 0 {
        return Err(hp.bad("interleave_moe_layer_step", "must be positive"));
    }
    build(hp, decoder::rope(hp, RopeLayout::Norm)?, |il| {
        if il >= n_dense && (il + 1).is_multiple_of(step) {
            moe(hp, il).map(Some)
        } else {
            Ok(None)
        }
    })
}

/// The layers; `experts` says which have some.
fn build(
    hp: &Hparams<'_>,
    rope: RopeSpec,
    experts: impl Fn(usize) -> Result<Option<MoeSpec>, ModelError>,
) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        // llama.cpp knows a bias of the output projection, and leaves it out.
        let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
        let ffn = match experts(il)? {
            Some(experts) => BlockKind::Moe(experts),
            None => decoder::dense(hp, il, Activation::SwiGlu)?,
        };
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, rope, layer)
}

fn moe(hp: &Hparams<'_>, il: usize) -> Result<MoeSpec, ModelError> {
    let n_shared = hp.u32("expert_shared_feed_forward_length")?.unwrap_or(0) as usize;
    Ok(MoeSpec {
        selection_bias: hp.has_tensor(&format!("blk.{il}.exp_probs_b.bias")),
        weights_scale: hp.expert_weights_scale()?,
        shared: (n_shared > 0).then(|| SharedExpertSpec::new(n_shared, Activation::SwiGlu)),
        ..experts::read(hp, il, |_| 0)?
    })
}
