//! `dots3note` (dots3-note): latent attention in all layers, with a gate for each head and a norm of what is rotated of a key.
//! Most layers have a window, heads and compressed rows of other sizes, and a rotation of their own; in the others a row
//! attends to the positions that an index chose. FFNs are deepseek2's.

use brigade_spec::{
    BlockKind, BlockSpec, ChosenBy, ChosenSpec, IndexSpec, LayerSpec, MlaGate, MlaSpec, ModelError,
    ModelSpec, Rotation,
};

use super::deepseek2;
use super::deepseek32::Sizes;
use crate::read::decoder::Windows;
use crate::read::{Hparams, mla, model, rope};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let sizes = Sizes::read(hp)?;
    let n_dense = hp.need_u32("leading_dense_block_count")? as usize;
    let widest = mla::read(hp, 0, eps)?;
    let rope = rope::read(hp, RopeLayout::Norm, widest.n_nope + widest.n_pe, false)?;
    let window = hp.need_u32("attention.sliding_window")?;
    let windows = Windows::of_layers(hp, hp.listed_windows()?, Some(window), &rope, rope.clone())?;
    let mut layers = Vec::with_capacity(hp.n_layer());
    for il in 0..hp.n_layer() {
        let ffn = if il < n_dense { deepseek2::dense(hp, il)? } else { moe(hp, il)? };
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        let attention = attention(hp, il, &sizes, &windows, eps)?;
        layers.push(LayerSpec {
            blocks: vec![
                block("attn_norm.weight", BlockKind::Mla(attention)),
                block("ffn_norm.weight", ffn),
            ],
        });
    }
    let local_rope = windows.local_rope;
    Ok(ModelSpec { rope: Some(rope), local_rope, ..model::usual(hp, layers, eps)? })
}

fn attention(
    hp: &Hparams<'_>,
    il: usize,
    sizes: &Sizes,
    windows: &Windows,
    eps: f32,
) -> Result<MlaSpec, ModelError> {
    let (rotation, gate) = (Rotation::Model, Some(MlaGate::EachHead));
    let whole = MlaSpec { gate, rotation, pe_norm: true, ..mla::read(hp, il, eps)? };
    let Some(window) = windows.window_of(il) else {
        let chosen = Some(chosen(hp, il, &whole, sizes)?);
        return Ok(MlaSpec { chosen, ..whole });
    };
    let size = |key| match hp.need_u32(key)? {
        0 => Err(hp.bad(key, "must be positive")),
        n => Ok(n as usize),
    };
    const KEY: &str = "attention.key_length_mla_swa";
    let key = size(KEY)?;
    let Some(n_nope) = key.checked_sub(whole.n_pe).filter(|n| *n > 0) else {
        let problem = format!("is {key}, of which {} are to be rotated", whole.n_pe);
        return Err(hp.bad(KEY, &problem));
    };
    let rotation = if windows.local_rope.is_some() { Rotation::Local } else { rotation };
    Ok(MlaSpec {
        kv_rank: size("attention.kv_lora_rank_swa")?,
        head_dim_v: size("attention.value_length_mla_swa")?,
        n_nope,
        scale: 1.0 / (key as f32).sqrt(),
        rotation,
        window: Some(window),
        ..whole
    })
}

/// The positions of a layer without a window. The pairs of an index are in halves, those of heads are not.
fn chosen(
    hp: &Hparams<'_>,
    il: usize,
    mla: &MlaSpec,
    sizes: &Sizes,
) -> Result<ChosenSpec, ModelError> {
    let own = sizes.own(hp, il, mla, Rotation::Model, false)?;
    let by = match own.by {
        ChosenBy::Index(index) => ChosenBy::Index(IndexSpec { halves: true, ..index }),
        ChosenBy::Before => ChosenBy::Before,
    };
    Ok(ChosenSpec { by, ..own })
}

fn moe(hp: &Hparams<'_>, il: usize) -> Result<BlockKind, ModelError> {
    let Some(router) = hp.expert_router()? else {
        return Err(hp.bad("expert_gating_func", "must be present"));
    };
    Ok(BlockKind::Moe(deepseek2::shared_and_routed(hp, il, router)?))
}
