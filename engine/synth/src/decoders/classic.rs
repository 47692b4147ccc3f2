//! Synthetic decoders as they were before Llama (GPT-2, Falcon, Phi-2, StarCoder 2 and others), and some of
//! their relatives. They have layer norms with biases and FFNs without gates. In some of them attention and
//! FFN read the same rows.

use super::plain::{
    fused_ffn, fused_projections, half_rotated, projections, qkv_biases, untied, whole_heads,
};
use crate::Shape;
use crate::file_type::Role;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    EMBEDDING, RMS_EPSILON, attention, embedding, embedding_matrices, ffn, ffn_matrices,
    refuse_experts, transformer_metadata,
};

/// Metadata, embedding and layers; the last norm has a bias.
pub(super) fn layers(
    shape: &Shape,
    plan: &mut ModelPlan,
    layer: impl Fn(&mut ModelPlan),
) -> Result<(), String> {
    refuse_experts(shape)?;
    whole_heads(shape)?;
    transformer_metadata(shape, plan);
    plan.number("attention.layer_norm_epsilon", RMS_EPSILON);
    embedding(shape, plan, EMBEDDING);
    plan.global_bias("output_norm", shape.n_embd);
    for il in 0..shape.n_layer {
        plan.layer(il);
        layer(plan);
    }
    Ok(())
}

/// A LayerNorm with weight and bias.
pub(crate) fn norm(shape: &Shape, plan: &mut ModelPlan, name: &str) {
    plan.norm(name, shape.n_embd);
    plan.bias(name, shape.n_embd);
}

/// A way up and a way down without a gate.
pub(crate) fn two_matrices(shape: &Shape, plan: &mut ModelPlan, biases: bool) {
    plan.matrix("ffn_up", Role::Matrix, &[shape.n_embd, shape.n_ff], 1.0);
    let down = Role::FfnDown { expert: false };
    plan.matrix("ffn_down", down, &[shape.n_ff, shape.n_embd], 1.0);
    if biases {
        plan.bias("ffn_up", shape.n_ff);
        plan.bias("ffn_down", shape.n_embd);
    }
}

/// One tensor for queries, keys and values, with its bias, and a bias on the way back.
pub(crate) fn fused_with_biases(shape: &Shape, plan: &mut ModelPlan) {
    fused_projections(shape, plan);
    plan.bias("attn_qkv", (shape.n_head + 2 * shape.n_head_kv) * shape.head_dim);
    plan.bias("attn_output", shape.n_embd);
}

/// starcoder2: GELU and biases everywhere.
pub(crate) fn starcoder2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    layers(shape, plan, |plan| {
        norm(shape, plan, "attn_norm");
        projections(shape, plan);
        qkv_biases(shape, plan);
        plan.bias("attn_output", shape.n_embd);
        norm(shape, plan, "ffn_norm");
        two_matrices(shape, plan, true);
    })
}

/// codeshell: starcoder2 with one tensor for queries, keys and values.
pub(crate) fn codeshell(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    layers(shape, plan, |plan| {
        norm(shape, plan, "attn_norm");
        fused_with_biases(shape, plan);
        norm(shape, plan, "ffn_norm");
        two_matrices(shape, plan, true);
    })
}

/// orion: llama's block with LayerNorms.
pub(crate) fn orion(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    layers(shape, plan, |plan| {
        norm(shape, plan, "attn_norm");
        projections(shape, plan);
        norm(shape, plan, "ffn_norm");
        ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    })
}

/// nemotron: squared ReLUs, half-rotated heads.
pub(crate) fn nemotron(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    layers(shape, plan, |plan| {
        norm(shape, plan, "attn_norm");
        projections(shape, plan);
        norm(shape, plan, "ffn_norm");
        two_matrices(shape, plan, true);
    })?;
    half_rotated(shape, plan);
    Ok(())
}

/// jais2: squared ReLUs, biases everywhere.
pub(crate) fn jais2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    layers(shape, plan, |plan| {
        norm(shape, plan, "attn_norm");
        projections(shape, plan);
        qkv_biases(shape, plan);
        plan.bias("attn_output", shape.n_embd);
        norm(shape, plan, "ffn_norm");
        two_matrices(shape, plan, true);
    })
}

/// gptneox: a norm each for attention and FFN beside each other, half-rotated heads.
pub(crate) fn gptneox(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    layers(shape, plan, |plan| {
        norm(shape, plan, "attn_norm");
        fused_with_biases(shape, plan);
        norm(shape, plan, "ffn_norm");
        two_matrices(shape, plan, true);
    })?;
    plan.flag("use_parallel_residual", true);
    half_rotated(shape, plan);
    Ok(())
}

/// phi2: one norm for attention and FFN, a bias of the logits.
pub(crate) fn phi2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    layers(shape, plan, |plan| {
        norm(shape, plan, "attn_norm");
        fused_with_biases(shape, plan);
        two_matrices(shape, plan, true);
    })?;
    plan.global_bias("output", shape.vocab);
    half_rotated(shape, plan);
    Ok(())
}

/// falcon as the large ones are: a norm each for attention and FFN beside each other.
pub(crate) fn falcon(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    layers(shape, plan, |plan| {
        norm(shape, plan, "attn_norm");
        norm(shape, plan, "attn_norm_2");
        fused_projections(shape, plan);
        two_matrices(shape, plan, false);
    })
}

/// stablelm as the large one is: one norm for attention and FFN, norms of each head, half-rotated.
pub(crate) fn stablelm(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    layers(shape, plan, |plan| {
        norm(shape, plan, "attn_norm");
        projections(shape, plan);
        plan.matrix_norm("attn_q_norm", &[shape.head_dim, shape.n_head]);
        plan.matrix_norm("attn_k_norm", &[shape.head_dim, shape.n_head_kv]);
        ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    })?;
    half_rotated(shape, plan);
    Ok(())
}

/// llama's block under other names: internlm2, xverse, exaone.
pub(crate) fn llama_like(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    scaled(shape, plan, EMBEDDING)
}

/// minicpm: llama's block with granite's scales.
pub(crate) fn minicpm(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    const EMBEDDING_SCALE: f32 = 12.0;
    plan.number("embedding_scale", EMBEDDING_SCALE);
    plan.number("residual_scale", 0.6);
    plan.number("logit_scale", 0.25);
    scaled(shape, plan, EMBEDDING / EMBEDDING_SCALE)
}

fn scaled(shape: &Shape, plan: &mut ModelPlan, deviation: f32) -> Result<(), String> {
    refuse_experts(shape)?;
    whole_heads(shape)?;
    transformer_metadata(shape, plan);
    embedding(shape, plan, deviation);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        ffn(shape, plan);
    }
    Ok(())
}

/// gemma, the first: scaled embeddings, gated GELU.
pub(crate) fn gemma(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    if !shape.tied {
        return Err("its output matrix is the embedding, choose a size where it is".to_owned());
    }
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    embedding(shape, plan, EMBEDDING / (shape.n_embd as f32).sqrt());
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        ffn(shape, plan);
    }
    Ok(())
}

/// arcee: llama's block with squared ReLUs.
pub(crate) fn arcee(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    plan.global_norm("rope_freqs", shape.head_dim / 2);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        two_matrices(shape, plan, false);
    }
    Ok(())
}

/// chatglm: fused projections with a bias, a fused way up, half-rotated heads.
pub(crate) fn chatglm(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    half_rotated(shape, plan);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        fused_projections(shape, plan);
        plan.bias("attn_qkv", (shape.n_head + 2 * shape.n_head_kv) * shape.head_dim);
        plan.norm("ffn_norm", shape.n_embd);
        fused_ffn(shape, plan);
    }
    Ok(())
}

/// olmo, the first: norms without weights, clamped queries, keys and values.
pub(crate) fn olmo(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    whole_heads(shape)?;
    transformer_metadata(shape, plan);
    plan.number("attention.layer_norm_epsilon", RMS_EPSILON);
    plan.number("attention.clamp_kqv", 1.2);
    embedding_matrices(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        projections(shape, plan);
        ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    }
    Ok(())
}
