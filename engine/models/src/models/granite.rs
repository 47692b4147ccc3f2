//! `granite`, `granitehybrid` and `granite_swa`. granite is llama's block with four scales (embedding, residual, attention,
//! logits), and a switch that leaves the rotation out. granitehybrid has Mamba-2 mixers in layers without KV
//! heads. granite_swa has sinks, windows in listed layers, and layers without rotation where the file says so.

use brigade_spec::{AttentionSpec, BlockKind, ModelError, ModelSpec, Rotation, ScoreSpec};

use crate::read::decoder::Windows;
use crate::read::transformer::Family;
use crate::read::{Hparams, transformer};
use brigade_shapes::RopeLayout;

const FAMILY: Family = Family {
    layout: RopeLayout::Norm,
    rope_factors: true,
    qk_norm: false,
    shared_expert: true,
    granite_scales: true,
    rotation_switch: true,
    mamba2: false,
    sections: None,
};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    if hp.f32("logit_scale")?.unwrap_or(0.0) <= 0.0 {
        return Err(hp.bad("logit_scale", "must be present and positive for granite"));
    }
    transformer::describe(hp, &FAMILY)
}

/// granite without tensors of factors, all of whose layers are dense.
pub(super) fn describe_switched(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    if hp.u32("expert_count")?.unwrap_or(0) > 0 {
        return Err(hp.bad("expert_count", &format!("must be 0: {} has no experts", hp.arch())));
    }
    hp.need_f32("logit_scale")?;
    transformer::describe(hp, &Family { rope_factors: false, ..FAMILY })
}

pub(super) fn describe_hybrid(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    transformer::describe(hp, &Family { mamba2: true, ..FAMILY })
}

pub(super) fn describe_swa(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    if hp.i32s("deepstack_mapping")?.is_some_and(|map| map.iter().any(|&input| input >= 0)) {
        return Err(ModelError::Unsupported(format!("{} made for images", hp.arch())));
    }
    let family = Family { rotation_switch: false, ..FAMILY };
    let mut spec = transformer::describe(hp, &family)?;
    let Some(rope) = spec.rope.clone() else {
        unreachable!("without the switch, a family rotates");
    };
    let window = hp.need_u32("attention.sliding_window")?;
    let layers = hp.listed_windows()?;
    let windows = Windows::of_layers(hp, layers, Some(window), &rope, rope.clone())?;
    windows.one_base(hp)?;
    let rotates = hp.flags("attention.rope_pattern")?;
    for (il, layer) in spec.layers.iter_mut().enumerate() {
        let rotates = rotates.as_ref().is_none_or(|flags| flags.get(il) != Some(&false));
        for block in &mut layer.blocks {
            match &mut block.kind {
                BlockKind::Attention(attention) => {
                    let rotation = if rotates { Rotation::Model } else { Rotation::None };
                    let scores = ScoreSpec { sinks: true, ..ScoreSpec::default() };
                    let with = AttentionSpec { scores, rotation, ..attention.clone() };
                    *attention = windows.apply(il, with);
                }
                // The shared expert's gate and way up are one tensor.
                BlockKind::Moe(moe) => {
                    moe.shared.iter_mut().for_each(|shared| shared.mlp.fused = true);
                }
                _ => {}
            }
        }
    }
    Ok(spec)
}
