//! `qwen3next`, `qwen35` and `qwen35moe`. Three layers with gated delta nets are followed by one with full
//! attention. There a part of the query projection gates the output, and a part of each head is rotated.
//!
//! qwen35 is dense. The other two have experts behind a softmax router, beside a shared expert that has a
//! gate.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, BlockSpec, DeltaNetSpec, DraftInput, GateSource,
    HeadOutputSpec, LayerSpec, MlpSpec, ModelError, ModelSpec, MoeSpec, OutputGate, QkNorm,
    Rotation, SharedExpertSpec,
};

use crate::read::attention::attention_spec;
use crate::read::own_drafts::{DraftBlocks, with_blocks};
use crate::read::sections::{SectionOrder, Sections};
use crate::read::{Hparams, experts, model, rope};
use brigade_shapes::{Decay, DeltaShape, KeyHeads, RopeLayout};

/// Every this many layers one has full attention, where the file does not say.
pub(super) const DEFAULT_INTERVAL: u32 = 4;

/// Experts in every layer, value heads grouped by key head.
pub(super) fn describe_qwen3next(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    describe(hp, KeyHeads::Grouped, &experts_ffn)
}

/// Dense; the converter laid the value heads out in turns of the key heads.
pub(super) fn describe_qwen35(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    describe_35(hp, &dense_ffn)
}

/// As `qwen35`, with experts.
pub(super) fn describe_qwen35moe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    describe_35(hp, &experts_ffn)
}

/// Both have their rotated pairs in sections.
fn describe_35(hp: &Hparams<'_>, ffn: &Ffn) -> Result<ModelSpec, ModelError> {
    let sections = Sections::need(hp)?;
    let spec = describe(hp, KeyHeads::Tiled, ffn)?;
    let rope = spec.rope.map(|rope| sections.of_text(rope, SectionOrder::Turns));
    Ok(ModelSpec { rope, ..spec })
}

/// Describes the FFN of a layer.
type Ffn = dyn Fn(&Hparams<'_>, usize) -> Result<BlockKind, ModelError>;

fn describe(hp: &Hparams<'_>, key_heads: KeyHeads, ffn: &Ffn) -> Result<ModelSpec, ModelError> {
    let eps = hp.need_f32("attention.layer_norm_rms_epsilon")?;
    let delta_net = delta_net(hp, key_heads, eps)?;
    let recurrent = recurrent_layers(hp, DEFAULT_INTERVAL)?;
    let block = |norm, kind| BlockSpec::new(norm, eps, kind);
    let layer = |il: usize, mixer| {
        let ffn = block("post_attention_norm.weight", ffn(hp, il)?);
        Ok::<_, ModelError>(LayerSpec { blocks: vec![block("attn_norm.weight", mixer), ffn] })
    };
    let attention = |il: usize| {
        Ok::<_, ModelError>(AttentionSpec {
            rotation: Rotation::Model,
            qk_norm: Some(QkNorm::heads(eps)),
            head_output: HeadOutputSpec::gated(GateSource::BehindQuery),
            ..attention_spec(hp, il)?
        })
    };
    let mut head_dim = None;
    let mut layers = Vec::with_capacity(hp.n_layer());
    for (il, recurrent) in recurrent.into_iter().enumerate().take(hp.n_layer()) {
        let mixer = if recurrent {
            BlockKind::DeltaNet(delta_net.clone())
        } else {
            let attention = attention(il)?;
            head_dim = Some(attention.head_dim_k);
            BlockKind::Attention(attention)
        };
        layers.push(layer(il, mixer)?);
    }
    let rope = match head_dim {
        Some(head_dim) => Some(rope::read(hp, RopeLayout::Neox, head_dim, false)?),
        None => None,
    };
    let spec = ModelSpec { rope, ..model::usual(hp, layers, eps)? };
    // The block has full attention, whatever the layers before it have. Without a rotation there is nothing that it shares.
    match spec.rope {
        Some(_) => Ok(with_blocks(hp, spec, DraftBlocks::One, DraftInput::Normed, |il| {
            layer(il, BlockKind::Attention(attention(il)?))
        })),
        None => Ok(spec),
    }
}

pub(super) fn delta_net(
    hp: &Hparams<'_>,
    key_heads: KeyHeads,
    eps: f32,
) -> Result<DeltaNetSpec, ModelError> {
    let size = |key: &str| Ok::<_, ModelError>(hp.need_u32(key)? as usize);
    let (d, inner) = (size("ssm.state_size")?, size("ssm.inner_size")?);
    let (n_head, n_key_head) = (size("ssm.time_step_rank")?, size("ssm.group_count")?);
    if d == 0 || n_head.checked_mul(d) != Some(inner) {
        let problem = format!("is {inner}, but there are {n_head} heads of {d}");
        return Err(hp.bad("ssm.inner_size", &problem));
    }
    if n_key_head == 0 || n_head == 0 || !n_head.is_multiple_of(n_key_head) {
        let problem = format!("{n_key_head} key heads cannot serve {n_head} value heads");
        return Err(hp.bad("ssm.group_count", &problem));
    }
    let decay = Decay::PerHead;
    let shape = DeltaShape { n_head, n_key_head, key_heads, d_k: d, d_v: d, decay };
    let conv_taps = hp.conv_taps("ssm.conv_kernel")?;
    Ok(DeltaNetSpec { shape, conv_taps, eps, gate: OutputGate::Silu })
}

/// For each layer, whether it is recurrent: listed, or all but every `full_attention_interval`-th, by default every
/// `interval`-th.
pub(super) fn recurrent_layers(hp: &Hparams<'_>, interval: u32) -> Result<Vec<bool>, ModelError> {
    if let Some(listed) = hp.per_layer("attention.recurrent_layers")? {
        return Ok(listed.into_iter().map(|layer| layer != 0).collect());
    }
    let interval = hp.u32("full_attention_interval")?.unwrap_or(interval) as usize;
    if interval == 0 {
        return Err(hp.bad("full_attention_interval", "must be positive"));
    }
    Ok((1..=hp.n_layer()).map(|i| i % interval != 0).collect())
}

fn dense_ffn(hp: &Hparams<'_>, il: usize) -> Result<BlockKind, ModelError> {
    let n_ff = hp.need_per_layer("feed_forward_length")?[il];
    if n_ff == 0 {
        return Err(hp.bad("feed_forward_length", "must be positive"));
    }
    Ok(BlockKind::Mlp(MlpSpec::swiglu(n_ff)))
}

pub(super) fn experts_ffn(hp: &Hparams<'_>, il: usize) -> Result<BlockKind, ModelError> {
    let n_ff = hp.per_layer("feed_forward_length")?.map_or(0, |per_layer| per_layer[il]);
    let experts = experts::read(hp, il, |n_used| n_ff / n_used)?;
    let shared = match hp.u32("expert_shared_feed_forward_length")? {
        None | Some(0) => n_ff,
        Some(n) => n as usize,
    };
    if shared == 0 {
        return Err(hp.bad("expert_shared_feed_forward_length", "must be positive"));
    }
    let shared =
        SharedExpertSpec { gated: true, ..SharedExpertSpec::new(shared, Activation::SwiGlu) };
    Ok(BlockKind::Moe(MoeSpec { shared: Some(shared), ..experts }))
}
