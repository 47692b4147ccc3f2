//! Readers for plain transformers, a residual stack of attention and FFN. Their differences are the fields of
//! [`Family`]. Hybrid models list their blocks in their own files.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, BlockSpec, HeadSpec, LayerSpec, MlpSpec, ModelError,
    ModelSpec, MoeSpec, QkNorm, RopeSpec, Rotation, SharedExpertSpec,
};

use super::attention::attention_spec;
use super::decoder::scaled_output;
use super::hparams::Hparams;
use super::sections::{SectionOrder, Sections};
use super::{experts, mamba2, model, rope};
use brigade_shapes::RopeLayout;

/// Properties in which plain transformers differ.
pub(crate) struct Family {
    /// Pairing of a head's rotated elements.
    pub layout: RopeLayout,
    /// Whether factor tensors (`rope_freqs.weight`, `rope_factors_*`) apply.
    pub rope_factors: bool,
    /// Per-head norms of q and k before the rotation.
    pub qk_norm: bool,
    /// Whether layers with experts may have a shared one.
    pub shared_expert: bool,
    /// Whether granite's scale keys are read.
    pub granite_scales: bool,
    /// Whether `rope.scaling.finetuned = false` says that nothing rotates.
    pub rotation_switch: bool,
    /// Whether layers without KV heads have Mamba-2 mixers.
    pub mamba2: bool,
    /// Division of the pairs among the axes of pictures; `None`: they are not divided.
    pub sections: Option<SectionOrder>,
}

/// Builds the spec of a plain transformer from its metadata.
pub(crate) fn describe(hp: &Hparams<'_>, family: &Family) -> Result<ModelSpec, ModelError> {
    let eps = hp.need_f32("attention.layer_norm_rms_epsilon")?;
    let scales = if family.granite_scales { GraniteScales::read(hp)? } else { GraniteScales::NONE };
    let rope = rope_spec(hp, family)?;
    let mut layers = Vec::with_capacity(hp.n_layer());
    for il in 0..hp.n_layer() {
        let mixer = if family.mamba2 && hp.need_per_layer("attention.head_count_kv")?[il] == 0 {
            BlockKind::Mamba2(mamba2::mixer(hp, il, eps)?)
        } else {
            let attention = attention_spec(hp, il)?;
            BlockKind::Attention(AttentionSpec {
                scale: scales.attention.unwrap_or(attention.scale),
                rotation: if rope.is_some() { Rotation::Model } else { Rotation::None },
                qk_norm: family.qk_norm.then_some(QkNorm::heads(eps)),
                ..attention
            })
        };
        let ffn = ffn_spec(hp, family, il)?;
        let block = |norm, kind| BlockSpec {
            residual: scaled_output(scales.residual),
            ..BlockSpec::new(norm, eps, kind)
        };
        layers.push(LayerSpec {
            blocks: vec![block("attn_norm.weight", mixer), block("ffn_norm.weight", ffn)],
        });
    }
    Ok(ModelSpec {
        embedding_scale: scales.embedding,
        rope,
        head: HeadSpec { logit_scale: scales.logits, ..HeadSpec::usual(eps) },
        ..model::usual(hp, layers, eps)?
    })
}

/// Granite's four scales; 1 (or none) for everyone else. A missing key or 0 means "no scale".
struct GraniteScales {
    embedding: f32,
    residual: f32,
    attention: Option<f32>,
    logits: f32,
}

impl GraniteScales {
    const NONE: Self = Self { embedding: 1.0, residual: 1.0, attention: None, logits: 1.0 };

    fn read(hp: &Hparams<'_>) -> Result<Self, ModelError> {
        let scale = |key| Ok::<_, ModelError>(hp.f32(key)?.filter(|&s| s != 0.0));
        Ok(Self {
            embedding: scale("embedding_scale")?.unwrap_or(1.0),
            residual: scale("residual_scale")?.unwrap_or(1.0),
            attention: scale("attention.scale")?,
            logits: scale("logit_scale")?.map_or(1.0, |s| 1.0 / s),
        })
    }
}

fn ffn_spec(hp: &Hparams<'_>, family: &Family, il: usize) -> Result<BlockKind, ModelError> {
    let n_ff = hp.per_layer("feed_forward_length")?.map_or(0, |per_layer| per_layer[il]);
    let n_expert = hp.u32("expert_count")?.unwrap_or(0) as usize;
    if n_expert == 0 {
        if n_ff == 0 {
            return Err(hp.bad("feed_forward_length", "must be positive"));
        }
        return Ok(BlockKind::Mlp(MlpSpec::swiglu(n_ff)));
    }
    let shared = hp
        .u32("expert_shared_feed_forward_length")?
        .filter(|&n| n > 0 && family.shared_expert)
        .map(|n| SharedExpertSpec::new(n as usize, Activation::SwiGlu));
    // Mixtral's key is the width of one expert; qwen3moe's is that of all used ones together.
    let experts = experts::read(hp, il, |n_used| match hp.arch() {
        "qwen3moe" | "qwen3vlmoe" => n_ff / n_used,
        _ => n_ff,
    })?;
    Ok(BlockKind::Moe(MoeSpec { shared, ..experts }))
}

/// The model's rotation, or `None` where a file says `rope.scaling.finetuned = false`.
fn rope_spec(hp: &Hparams<'_>, family: &Family) -> Result<Option<RopeSpec>, ModelError> {
    if family.rotation_switch && hp.bool("rope.scaling.finetuned")? == Some(false) {
        return Ok(None);
    }
    let n_head = hp.need_per_layer("attention.head_count")?.into_iter().max().unwrap_or(0);
    let (head_dim, _) = hp.head_dims(n_head)?;
    let rope = rope::read(hp, family.layout, head_dim, family.rope_factors)?;
    if rope.n_rot != head_dim {
        return Err(hp.bad(
            "rope.dimension_count",
            &format!("is {}, but {} rotates whole heads of {head_dim}", rope.n_rot, hp.arch()),
        ));
    }
    Ok(Some(match family.sections {
        Some(order) => Sections::need(hp)?.check(hp, &rope)?.of_text(rope, order),
        None => rope,
    }))
}
