//! Common parts of synthetic plain decoders: the tensors of a layer, part by part, and the metadata keys that belong to
//! them.
//!
//! Tests run prompts of a hundred tokens, and these have to meet every feature of a model. So windows and
//! training contexts are parts of the model's context, and bounds are near the values that they bound.

use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{ATTENTION_GAIN, gated_experts};
use crate::{Experts, Shape};

/// Spread of what is usually about 0.
const SMALL: f32 = 0.1;

/// The sizes of the experts, which the architecture must have.
pub(crate) fn experts(shape: &Shape) -> Result<Experts, String> {
    shape.experts.ok_or_else(|| "it has experts, choose a size that has them".to_owned())
}

/// Refuses heads that together are wider or narrower than the residual stream.
pub(crate) fn whole_heads(shape: &Shape) -> Result<(), String> {
    if shape.n_head * shape.head_dim == shape.n_embd {
        return Ok(());
    }
    Err("the heads together must be as wide as the residual stream".to_owned())
}

/// Refuses an output matrix that is the embedding: llama.cpp does, for these architectures.
pub(crate) fn untied(shape: &Shape) -> Result<(), String> {
    if shape.tied {
        Err("it has an output matrix of its own, choose a size that has".to_owned())
    } else {
        Ok(())
    }
}

/// Positions that a window holds: 128 of a context of 131072.
pub(super) fn window(shape: &Shape, plan: &mut ModelPlan) {
    plan.count("attention.sliding_window", (shape.context / 1024).clamp(16, 4096));
}

/// Lists the layers that have a window: the last of every `period` has none.
pub(crate) fn listed_windows(shape: &Shape, plan: &mut ModelPlan, period: usize) -> Vec<bool> {
    window(shape, plan);
    let has: Vec<bool> = (1..=shape.n_layer).map(|il| !il.is_multiple_of(period)).collect();
    plan.counts("attention.sliding_window_pattern", has.iter().map(|&has| usize::from(has)));
    has
}

/// The matrix of a gate of what heads give, with a row for each head or for each of its values.
pub(crate) fn head_gate(shape: &Shape, plan: &mut ModelPlan, rows: usize) {
    plan.matrix("attn_gate", Role::Matrix, &[shape.n_embd, rows], 1.0);
}

/// A block of multi-token prediction behind the layers: what it has besides a layer.
pub(crate) fn prediction(shape: &Shape, plan: &mut ModelPlan) {
    prediction_behind(shape, plan, "nextn.shared_head_norm");
}

/// The same, with `norm` behind the block.
pub(crate) fn prediction_behind(shape: &Shape, plan: &mut ModelPlan, norm: &str) {
    plan.matrix("nextn.eh_proj", Role::Matrix, &[2 * shape.n_embd, shape.n_embd], 1.0);
    for norm in ["nextn.enorm", "nextn.hnorm", norm] {
        plan.norm(norm, shape.n_embd);
    }
}

/// Counts `n` blocks of multi-token prediction behind the layers.
pub(crate) fn count_predictions(shape: &Shape, plan: &mut ModelPlan, n: usize) {
    if n > 0 {
        plan.count("nextn_predict_layers", n);
        plan.count("block_count", shape.n_layer + n);
    }
}

/// YaRN over an eighth of the context.
pub(super) fn yarn(shape: &Shape, plan: &mut ModelPlan) {
    plan.text("rope.scaling.type", "yarn");
    plan.number("rope.scaling.factor", 8.0);
    plan.count("rope.scaling.original_context_length", shape.context.div_ceil(8));
}

/// Rotation of the first half of each head.
pub(crate) fn half_rotated(shape: &Shape, plan: &mut ModelPlan) {
    plan.count("rope.dimension_count", shape.head_dim / 2);
}

/// Layers before the first with experts: three in the largest models.
pub(crate) fn dense_layers(shape: &Shape) -> usize {
    if shape.n_layer >= 61 { 3 } else { 1 }
}

/// Attention's matrices, without the norm before it.
pub(crate) fn projections(shape: &Shape, plan: &mut ModelPlan) {
    let (q, kv) = widths(shape);
    plan.matrix("attn_q", Role::Matrix, &[shape.n_embd, q], 1.0);
    plan.matrix("attn_k", Role::AttnK, &[shape.n_embd, kv], 1.0);
    plan.matrix("attn_v", Role::AttnV, &[shape.n_embd, kv], 1.0);
    plan.matrix("attn_output", Role::AttnOutput, &[q, shape.n_embd], ATTENTION_GAIN);
}

/// As [`projections`], with one tensor for queries, keys and values.
pub(crate) fn fused_projections(shape: &Shape, plan: &mut ModelPlan) {
    let (q, kv) = widths(shape);
    plan.matrix("attn_qkv", Role::Matrix, &[shape.n_embd, q + 2 * kv], 1.0);
    plan.matrix("attn_output", Role::AttnOutput, &[q, shape.n_embd], ATTENTION_GAIN);
}

/// Biases of queries, keys and values.
pub(crate) fn qkv_biases(shape: &Shape, plan: &mut ModelPlan) {
    let (q, kv) = widths(shape);
    plan.bias("attn_q", q);
    plan.bias("attn_k", kv);
    plan.bias("attn_v", kv);
}

/// Norms of each head of q and k.
pub(crate) fn head_norms(shape: &Shape, plan: &mut ModelPlan) {
    plan.norm("attn_q_norm", shape.head_dim);
    plan.norm("attn_k_norm", shape.head_dim);
}

/// Norms of q and k over all heads together.
pub(super) fn wide_norms(shape: &Shape, plan: &mut ModelPlan) {
    let (q, kv) = widths(shape);
    plan.norm("attn_q_norm", q);
    plan.norm("attn_k_norm", kv);
}

/// A way up that has the gate's rows first, and the way down.
pub(crate) fn fused_ffn(shape: &Shape, plan: &mut ModelPlan) {
    plan.matrix("ffn_up", Role::Matrix, &[shape.n_embd, 2 * shape.n_ff], 1.0);
    let down = Role::FfnDown { expert: false };
    plan.matrix("ffn_down", down, &[shape.n_ff, shape.n_embd], 1.0);
}

/// A router and its experts.
pub(super) fn mixture(shape: &Shape, plan: &mut ModelPlan, experts: Experts) {
    plan.matrix("ffn_gate_inp", Role::Precise, &[shape.n_embd, experts.count], 1.0);
    gated_experts(plan, shape.n_embd, experts);
}

/// Biases of the router and of each matrix of each expert.
pub(super) fn expert_biases(shape: &Shape, plan: &mut ModelPlan, experts: Experts) {
    plan.bias("ffn_gate_inp", experts.count);
    for (part, width) in [("gate", experts.n_ff), ("up", experts.n_ff), ("down", shape.n_embd)] {
        let name = format!("ffn_{part}_exps.bias");
        plan.precise(&name, &[width, experts.count], Fill::Normal(SMALL));
    }
}

/// A score without a value for each head, about as large as those of positions.
pub(crate) fn sinks(shape: &Shape, plan: &mut ModelPlan) {
    plan.precise("attn_sinks.weight", &[shape.n_head], Fill::AroundOne(1.0));
}

/// Widths of queries, and of keys and values.
fn widths(shape: &Shape) -> (usize, usize) {
    (shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim)
}
