//! `hunyuan-dense`, `hunyuan_vl`, `hunyuan-moe`, `maincoder` and `hy_v3`. All but hy_v3 norm each head of q and k after
//! the rotation, hy_v3 before it. In the dense model, `rope.scaling.alpha` may stretch the rotation's base. hunyuan_vl is
//! the text of a model that reads images too: the dense one with rotated pairs in sections, where the file has these.
//! maincoder is the dense one with NORM rotation.
//!
//! hunyuan-moe has experts in every layer, beside a shared one that has a width of its own. hy_v3 has experts in the
//! layers that have a router: a sigmoid, with a bias that takes part in the choice.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, DraftInput, LayerSpec, ModelError, ModelSpec, MoeSpec,
    QkNorm, RopeSpec, Router, SharedExpertSpec,
};

use crate::read::decoder::{FFN_NORM, experts_beside_one, experts_or_dense};
use crate::read::own_drafts::{DraftBlocks, with_blocks};
use crate::read::sections::{SectionOrder, Sections};
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

pub(super) fn describe_dense(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = stretched(hp, decoder::rope_with_factors(hp, RopeLayout::Neox)?)?;
    decoder::model(hp, eps, rope, |il| dense_layer(hp, eps, il))
}

pub(super) fn describe_vl(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = stretched(hp, decoder::rope(hp, RopeLayout::Neox)?)?;
    let rope = match Sections::read(hp)? {
        Some(sections) => {
            sections.with_axes(hp)?.check(hp, &rope)?.of_text(rope, SectionOrder::Behind)
        }
        None => rope,
    };
    decoder::model(hp, eps, rope, |il| dense_layer(hp, eps, il))
}

/// `rope` with its base stretched, where the file says by how much.
fn stretched(hp: &Hparams<'_>, mut rope: RopeSpec) -> Result<RopeSpec, ModelError> {
    if let Some(alpha) = hp.f32("rope.scaling.alpha")?.filter(|&alpha| alpha > 0.0) {
        let (head_dim, _) = hp.head_dims(hp.need_per_layer("attention.head_count")?[0])?;
        let power = head_dim as f64 / (head_dim as f64 - 2.0);
        rope.freq_base *= libm::pow(f64::from(alpha), power) as f32;
    }
    Ok(rope)
}

pub(super) fn describe_maincoder(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Norm)?;
    decoder::model(hp, eps, rope, |il| dense_layer(hp, eps, il))
}

fn dense_layer(hp: &Hparams<'_>, eps: f32, il: usize) -> Result<LayerSpec, ModelError> {
    let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
    Ok(decoder::layer(eps, attention(hp, il, eps)?, FFN_NORM, ffn))
}

pub(super) fn describe_v3(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let qk_norm = Some(QkNorm::heads(eps));
        let attention = AttentionSpec { qk_norm, ..decoder::attention(hp, il)? };
        let ffn = experts_or_dense(hp, il, || experts_beside_one(hp, il, Router::Sigmoid))?;
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    let spec = decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)?;
    Ok(with_blocks(hp, spec, DraftBlocks::Several, DraftInput::Normed, layer))
}

pub(super) fn describe_moe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let n_ff = decoder::n_ff(hp, il)?;
        let n_shared = match hp.u32("expert_shared_feed_forward_length")?.unwrap_or(0) {
            0 => n_ff,
            n => n as usize,
        };
        let experts = MoeSpec {
            // The experts' width is under the dense FFN's key.
            n_ff,
            weights_scale: hp.expert_weights_scale()?,
            shared: Some(SharedExpertSpec::new(n_shared, Activation::SwiGlu)),
            ..experts::read(hp, il, |_| n_ff)?
        };
        Ok(decoder::layer(eps, attention(hp, il, eps)?, FFN_NORM, BlockKind::Moe(experts)))
    };
    decoder::model(hp, eps, decoder::rope_with_factors(hp, RopeLayout::Neox)?, layer)
}

fn attention(hp: &Hparams<'_>, il: usize, eps: f32) -> Result<AttentionSpec, ModelError> {
    let qk_norm = Some(QkNorm { after_rotation: true, ..QkNorm::heads(eps) });
    Ok(AttentionSpec { qk_norm, ..decoder::attention(hp, il)? })
}
