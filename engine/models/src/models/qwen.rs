//! `qwen`, `qwen2`, `qwen3` and `qwen3moe`: NEOX rotation without tensors of factors. qwen and qwen2 have biases on
//! q, k and v. The other two instead norm each head of q and k before the rotation.
//!
//! `qwen2vl`, `qwen3vl` and `qwen3vlmoe` are the texts of models that read images too, with rotated pairs in sections.
//! The terms that their first layers add for images (deepstack) are zero for text.

use brigade_spec::{AttentionSpec, BlockKind, MlpSpec, ModelError, ModelSpec};

use crate::read::decoder::FFN_NORM;
use crate::read::sections::SectionOrder;
use crate::read::transformer::Family;
use crate::read::{Hparams, decoder, transformer};
use brigade_shapes::RopeLayout;

const QWEN2: Family = Family {
    layout: RopeLayout::Neox,
    rope_factors: false,
    qk_norm: false,
    shared_expert: false,
    granite_scales: false,
    rotation_switch: false,
    mamba2: false,
    sections: None,
};

const QWEN3: Family = Family { qk_norm: true, ..QWEN2 };

const QWEN2_VL: Family = Family { sections: Some(SectionOrder::Behind), ..QWEN2 };

const QWEN3_VL: Family = Family { sections: Some(SectionOrder::Turns), ..QWEN3 };

/// The first Qwen: its FFN is half as wide as its key says.
pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let n_ff = decoder::n_ff(hp, il)? / 2;
        if n_ff == 0 {
            return Err(hp.bad("feed_forward_length", "must be at least 2"));
        }
        let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
        Ok(decoder::layer(eps, attention, FFN_NORM, BlockKind::Mlp(MlpSpec::swiglu(n_ff))))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

pub(super) fn describe_qwen2(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    transformer::describe(hp, &QWEN2)
}

pub(super) fn describe_qwen3(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    transformer::describe(hp, &QWEN3)
}

/// As `qwen3`, with experts in every layer.
pub(super) fn describe_qwen3moe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    with_experts(hp, &QWEN3)
}

/// Describes `qwen2vl`, which Qwen2.5-VL uses too.
pub(super) fn describe_qwen2vl(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    transformer::describe(hp, &QWEN2_VL)
}

pub(super) fn describe_qwen3vl(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    transformer::describe(hp, &QWEN3_VL)
}

pub(super) fn describe_qwen3vlmoe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    with_experts(hp, &QWEN3_VL)
}

fn with_experts(hp: &Hparams<'_>, family: &Family) -> Result<ModelSpec, ModelError> {
    if hp.u32("expert_count")?.unwrap_or(0) == 0 {
        return Err(hp.bad("expert_count", &format!("must be positive for {}", hp.arch())));
    }
    transformer::describe(hp, family)
}
