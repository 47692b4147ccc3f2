//! Synthetic models with llama's block, and with what Qwen and Granite change of it.

use crate::Shape;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    EMBEDDING, attention, embedding, ffn, granite_scales, refuse_experts, transformer_metadata,
};

/// llama, dense or with experts as in Mixtral.
pub(crate) fn llama(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    // It has no key for the experts' width: the FFN's stands for both.
    let n_ff = shape.experts.map_or(shape.n_ff, |experts| experts.n_ff);
    let shape = &Shape { n_ff, ..shape.clone() };
    transformer_metadata(shape, plan);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        ffn(shape, plan);
    }
    Ok(())
}

/// qwen2: llama's block with biases on queries, keys and values.
pub(crate) fn qwen2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    if shape.n_head * shape.head_dim != shape.n_embd {
        return Err("the heads together must be as wide as the residual stream".to_owned());
    }
    transformer_metadata(shape, plan);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        plan.bias("attn_q", shape.n_head * shape.head_dim);
        plan.bias("attn_k", shape.n_head_kv * shape.head_dim);
        plan.bias("attn_v", shape.n_head_kv * shape.head_dim);
        ffn(shape, plan);
    }
    Ok(())
}

/// qwen3: llama's block with norms on each head's query and key.
pub(crate) fn qwen3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    qwen3_layers(shape, plan);
    Ok(())
}

/// qwen3moe: qwen3's attention, experts.
pub(crate) fn qwen3moe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = shape.experts.ok_or("it has experts, choose a size that has them")?;
    plan.count("expert_feed_forward_length", experts.n_ff);
    qwen3_layers(shape, plan);
    Ok(())
}

fn qwen3_layers(shape: &Shape, plan: &mut ModelPlan) {
    transformer_metadata(shape, plan);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        plan.norm("attn_q_norm", shape.head_dim);
        plan.norm("attn_k_norm", shape.head_dim);
        ffn(shape, plan);
    }
}

/// granite: llama's block with four scales.
pub(crate) fn granite(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    let embedding_scale = granite_scales(shape, plan);
    embedding(shape, plan, EMBEDDING / embedding_scale);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        ffn(shape, plan);
    }
    Ok(())
}
