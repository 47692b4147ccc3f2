//! Synthetic models that read images too, with text alone. These decoders divide their rotated pairs among the axes of
//! pictures, have other matrices for images, or have tokens that stand for pieces of them.

use super::dense::layers;
use super::plain::{
    experts, fused_projections, head_norms, mixture, projections, qkv_biases, whole_heads,
};
use crate::Shape;
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    EMBEDDING, attention, embedding, ffn, ffn_matrices, refuse_experts, transformer_metadata,
};

/// The first token behind those that stand for images in chameleon.
const BEHIND_IMAGES: usize = 8196;
/// Layers up to which a chameleon norms what blocks read: the larger one norms what they give.
const NORMS_INPUTS: usize = 32;

/// First layers that take more of an image than its rows, in the models that do.
const DEEPSTACK_LAYERS: usize = 3;

/// qwen2vl: biases, more pairs for height and width than for time.
pub(crate) fn qwen2vl(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    whole_heads(shape)?;
    sections(shape, plan, |n| three(n, n / 4))?;
    transformer_metadata(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        qkv_biases(shape, plan);
        ffn(shape, plan);
    })
}

/// qwen3vl: norms of each head, sections in turns of which the last pairs fall into the fourth.
pub(crate) fn qwen3vl(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    qwen3vl_metadata(shape, plan)?;
    layers(shape, plan, EMBEDDING, |plan| qwen3vl_layer(shape, plan))
}

/// qwen3vlmoe: qwen3vl with experts.
pub(crate) fn qwen3vlmoe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    plan.count("expert_feed_forward_length", experts(shape)?.n_ff);
    qwen3vl_metadata(shape, plan)?;
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        qwen3vl_layer(shape, plan);
    }
    Ok(())
}

fn qwen3vl_metadata(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    sections(shape, plan, |n| three(n, 3 * n / 8))?;
    transformer_metadata(shape, plan);
    plan.count("n_deepstack_layers", DEEPSTACK_LAYERS.min(shape.n_layer));
    Ok(())
}

fn qwen3vl_layer(shape: &Shape, plan: &mut ModelPlan) {
    attention(shape, plan);
    head_norms(shape, plan);
    ffn(shape, plan);
}

/// hunyuan_vl: norms of each head behind a rotation whose base is stretched, four sections of the same size.
pub(crate) fn hunyuan_vl(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    sections(shape, plan, |n| [n / 4, n / 4, n / 4, n - 3 * (n / 4)])?;
    transformer_metadata(shape, plan);
    plan.text("rope.scaling.type", "none");
    plan.number("rope.scaling.factor", 1.0);
    plan.number("rope.scaling.alpha", 2.0);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        ffn(shape, plan);
    })
}

/// paddleocr: llama's block with sections.
pub(crate) fn paddleocr(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    sections(shape, plan, |n| three(n, n / 4))?;
    transformer_metadata(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        ffn(shape, plan);
    })
}

/// chameleon: norms of heads with weights of their own and a bias, tokens of images, norms of outputs in the large one.
pub(crate) fn chameleon(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    whole_heads(shape)?;
    if shape.vocab <= BEHIND_IMAGES {
        return Err(format!(
            "{} tokens, and those before {BEHIND_IMAGES} stand for images: choose a size with more",
            shape.vocab
        ));
    }
    transformer_metadata(shape, plan);
    plan.flag("swin_norm", shape.n_layer > NORMS_INPUTS);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        for (part, heads) in [("q", shape.n_head), ("k", shape.n_head_kv)] {
            let ne = [shape.head_dim, heads];
            plan.matrix_norm(&format!("attn_{part}_norm"), &ne);
            plan.precise(&format!("attn_{part}_norm.bias"), &ne, Fill::Normal(0.3));
        }
        ffn(shape, plan);
    })
}

/// cogvlm: one tensor for queries, keys and values, and all matrices again for images.
pub(crate) fn cogvlm(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    whole_heads(shape)?;
    refuse_experts(shape)?;
    let shape = &Shape { n_head_kv: shape.n_head, ..shape.clone() };
    transformer_metadata(shape, plan);
    let (n_embd, n_ff) = (shape.n_embd, shape.n_ff);
    layers(shape, plan, EMBEDDING, |plan| {
        plan.norm("attn_norm", n_embd);
        fused_projections(shape, plan);
        ffn(shape, plan);
        plan.matrix("vis_attn_qkv", Role::Matrix, &[n_embd, 3 * n_embd], 1.0);
        plan.matrix("vis_attn_output", Role::AttnOutput, &[n_embd, n_embd], 1.0);
        plan.matrix("vis_gate", Role::Matrix, &[n_embd, n_ff], 1.0);
        plan.matrix("vis_up", Role::Matrix, &[n_embd, n_ff], 1.0);
        plan.matrix("vis_down", Role::FfnDown { expert: false }, &[n_ff, n_embd], 1.0);
    })
}

/// deepseek2-ocr: plain attention, then experts beside two shared ones behind a dense layer.
pub(crate) fn deepseek2_ocr(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    whole_heads(shape)?;
    let shape = &Shape { n_head_kv: shape.n_head, ..shape.clone() };
    let experts = experts(shape)?;
    transformer_metadata(shape, plan);
    plan.count("expert_feed_forward_length", experts.n_ff);
    plan.count("leading_dense_block_count", 1);
    plan.count("expert_shared_count", 2);
    plan.number("expert_weights_scale", 1.5);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        projections(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        if il == 0 {
            ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
            continue;
        }
        mixture(shape, plan, experts);
        plan.bias("exp_probs_b", experts.count);
        ffn_matrices(plan, "_shexp", shape.n_embd, 2 * experts.n_ff);
    }
    Ok(())
}

/// `of_time` of `n` pairs for time, the others for height and width.
fn three(n: usize, of_time: usize) -> [usize; 4] {
    let height = (n - of_time) / 2;
    [of_time, height, n - of_time - height, 0]
}

/// The sections that `divide` makes of a head's pairs.
fn sections(
    shape: &Shape,
    plan: &mut ModelPlan,
    divide: impl Fn(usize) -> [usize; 4],
) -> Result<(), String> {
    let n_pairs = shape.head_dim / 2;
    if n_pairs < 4 {
        return Err(format!(
            "heads of {}, must be 8 at least: they have 4 sections",
            shape.head_dim
        ));
    }
    plan.counts("rope.dimension_sections", divide(n_pairs));
    Ok(())
}
