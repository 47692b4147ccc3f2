//! Synthetic decoders that rotate nothing: rows of positions are added to the embedding, or scores fall with the
//! distance.

use super::classic::{fused_with_biases, layers, norm, two_matrices};
use super::plain::{fused_projections, untied, whole_heads};
use crate::Shape;
use crate::file_type::Role;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    EMBEDDING, RMS_EPSILON, attention, embedding, ffn, ffn_matrices, refuse_experts,
    transformer_metadata,
};

/// Most positions that a table of them gets.
const LONGEST_TABLE: usize = 4096;
/// Spread of positions' rows beside that of tokens.
const POSITION: f32 = 0.5;
/// Layers of Baichuan 7B and 13B.
const BAICHUANS: [usize; 2] = [32, 40];

/// A row for each position.
fn positions(shape: &Shape, plan: &mut ModelPlan) {
    let n = shape.context.min(LONGEST_TABLE);
    plan.count("context_length", n);
    plan.global("position_embd", Role::Precise, &[shape.n_embd, n], POSITION);
}

/// gpt2 and starcoder, and mpt without slopes: rows of positions, biases everywhere.
pub(crate) fn gpt2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    layers(shape, plan, |plan| biased_layer(shape, plan))?;
    positions(shape, plan);
    Ok(())
}

fn biased_layer(shape: &Shape, plan: &mut ModelPlan) {
    norm(shape, plan, "attn_norm");
    fused_with_biases(shape, plan);
    norm(shape, plan, "ffn_norm");
    two_matrices(shape, plan, true);
}

/// bloom: a norm of the embedded rows, biases everywhere.
pub(crate) fn bloom(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    layers(shape, plan, |plan| biased_layer(shape, plan))?;
    plan.global_norm("token_embd_norm", shape.n_embd);
    plan.global_bias("token_embd_norm", shape.n_embd);
    Ok(())
}

/// mpt: attention without rotation. Where the output matrix is the embedding: slopes, clamped projections and no
/// biases, as MPT 7B. Where it is not: rows of positions, and biases.
pub(crate) fn mpt(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    if !shape.tied {
        return gpt2(shape, plan);
    }
    refuse_experts(shape)?;
    whole_heads(shape)?;
    transformer_metadata(shape, plan);
    plan.number("attention.layer_norm_epsilon", RMS_EPSILON);
    plan.number("attention.max_alibi_bias", 8.0);
    plan.number("attention.clamp_kqv", 1.2);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        fused_projections(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        two_matrices(shape, plan, false);
    }
    Ok(())
}

/// jais: slopes, gated FFNs, biases everywhere.
pub(crate) fn jais(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    layers(shape, plan, |plan| {
        norm(shape, plan, "attn_norm");
        fused_with_biases(shape, plan);
        norm(shape, plan, "ffn_norm");
        ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
        plan.bias("ffn_gate", shape.n_ff);
        plan.bias("ffn_up", shape.n_ff);
        plan.bias("ffn_down", shape.n_embd);
    })?;
    plan.number("attention.max_alibi_bias", 8.0);
    Ok(())
}

/// refact: llama's block with slopes.
pub(crate) fn refact(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        ffn(shape, plan);
    }
    Ok(())
}

/// baichuan: with 32 layers it rotates, with 40 it has slopes, and there is no other.
pub(crate) fn baichuan(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    whole_heads(shape)?;
    if BAICHUANS.contains(&shape.n_layer) {
        refact(shape, plan)
    } else {
        Err("it has 32 or 40 layers, choose a size with as many".to_owned())
    }
}
