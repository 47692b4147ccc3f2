//! Metadata and tensors that the architectures of synthetic models share.

use super::file_type::Role;
use super::plan::ModelPlan;
use super::{Experts, Shape};

/// Standard deviation of embeddings after the architecture's own scaling: about what a layer adds, so
/// that a token still tells in the last layer of a deep model.
pub(super) const EMBEDDING: f32 = 1.0;
/// Gain of the attention's way back. Attention with random weights is near the mean over all positions, and
/// so the same for each of them. At full gain it drowns the rest in deep models, and greedy text is one token
/// over and over.
pub(super) const ATTENTION_GAIN: f32 = 0.5;
/// Gain of the output matrix: logits of this standard deviation.
const OUTPUT_GAIN: f32 = 3.0;
pub(super) const RMS_EPSILON: f32 = 1e-5;

/// Adds granite's four scales; returns the embedding's.
pub(super) fn granite_scales(shape: &Shape, plan: &mut ModelPlan) -> f32 {
    const EMBEDDING_SCALE: f32 = 12.0;
    plan.number("embedding_scale", EMBEDDING_SCALE);
    plan.number("residual_scale", 0.5);
    plan.number("attention.scale", 1.0 / (shape.head_dim as f32).sqrt());
    plan.number("logit_scale", 2.0);
    EMBEDDING_SCALE
}

pub(super) fn refuse_experts(shape: &Shape) -> Result<(), String> {
    match shape.experts {
        Some(_) => Err("it has no experts, choose a size without".to_owned()),
        None => Ok(()),
    }
}

pub(super) fn transformer_metadata(shape: &Shape, plan: &mut ModelPlan) {
    base_metadata(shape, plan);
    plan.count("attention.head_count_kv", shape.n_head_kv);
    plan.count("attention.key_length", shape.head_dim);
    plan.count("attention.value_length", shape.head_dim);
    plan.count("rope.dimension_count", shape.head_dim);
}

/// Metadata of all models, whatever the attention is.
pub(super) fn base_metadata(shape: &Shape, plan: &mut ModelPlan) {
    plan.count("context_length", shape.context);
    plan.count("embedding_length", shape.n_embd);
    plan.count("block_count", shape.n_layer);
    plan.count("feed_forward_length", shape.n_ff);
    plan.count("attention.head_count", shape.n_head);
    plan.number("rope.freq_base", 10000.0);
    plan.number("attention.layer_norm_rms_epsilon", RMS_EPSILON);
    plan.count("vocab_size", shape.vocab);
    if let Some(experts) = shape.experts {
        plan.count("expert_count", experts.count);
        plan.count("expert_used_count", experts.used);
    }
}

/// Tensors of the first and the last stage besides layers.
pub(super) fn embedding(shape: &Shape, plan: &mut ModelPlan, deviation: f32) {
    embedding_matrices(shape, plan, deviation);
    plan.global_norm("output_norm", shape.n_embd);
}

/// Embedding and output, one matrix or two.
pub(super) fn embedding_matrices(shape: &Shape, plan: &mut ModelPlan, deviation: f32) {
    let ne = [shape.n_embd, shape.vocab];
    if shape.tied {
        plan.global("token_embd", Role::Output, &ne, deviation);
    } else {
        plan.global("token_embd", Role::Embedding, &ne, deviation);
        plan.global("output", Role::Output, &ne, OUTPUT_GAIN / (shape.n_embd as f32).sqrt());
    }
}

pub(super) fn attention(shape: &Shape, plan: &mut ModelPlan) {
    let (q, kv) = (shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim);
    plan.norm("attn_norm", shape.n_embd);
    plan.matrix("attn_q", Role::Matrix, &[shape.n_embd, q], 1.0);
    plan.matrix("attn_k", Role::AttnK, &[shape.n_embd, kv], 1.0);
    plan.matrix("attn_v", Role::AttnV, &[shape.n_embd, kv], 1.0);
    plan.matrix("attn_output", Role::AttnOutput, &[q, shape.n_embd], ATTENTION_GAIN);
}

pub(super) fn ffn(shape: &Shape, plan: &mut ModelPlan) {
    plan.norm("ffn_norm", shape.n_embd);
    dense_or_experts(shape, plan);
}

/// An FFN without its norm.
pub(super) fn dense_or_experts(shape: &Shape, plan: &mut ModelPlan) {
    let Some(experts) = shape.experts else {
        return ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    };
    plan.matrix("ffn_gate_inp", Role::Precise, &[shape.n_embd, experts.count], 1.0);
    gated_experts(plan, shape.n_embd, experts);
}

/// Experts with gates that work in rows of `width`.
pub(super) fn gated_experts(plan: &mut ModelPlan, width: usize, experts: Experts) {
    let (up, down) = ([width, experts.n_ff, experts.count], [experts.n_ff, width, experts.count]);
    plan.matrix("ffn_gate_exps", Role::Expert, &up, 1.0);
    plan.matrix("ffn_up_exps", Role::Expert, &up, 1.0);
    plan.matrix("ffn_down_exps", Role::FfnDown { expert: true }, &down, 1.0);
}

/// A gated FFN; `suffix` tells a shared expert from the layer's own.
pub(super) fn ffn_matrices(plan: &mut ModelPlan, suffix: &str, n_embd: usize, n_ff: usize) {
    let name = |part: &str| format!("ffn_{part}{suffix}");
    plan.matrix(&name("gate"), Role::Matrix, &[n_embd, n_ff], 1.0);
    plan.matrix(&name("up"), Role::Matrix, &[n_embd, n_ff], 1.0);
    plan.matrix(&name("down"), Role::FfnDown { expert: false }, &[n_ff, n_embd], 1.0);
}
