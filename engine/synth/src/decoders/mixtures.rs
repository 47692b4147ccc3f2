//! Synthetic decoders with experts. Each is Mixtral's block with some changes.

use super::plain::{
    dense_layers, expert_biases, experts, fused_projections, half_rotated, head_norms, mixture,
    prediction, projections, qkv_biases, sinks, untied, whole_heads, wide_norms, window, yarn,
};
use crate::file_type::Role;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    ATTENTION_GAIN, EMBEDDING, RMS_EPSILON, attention, embedding, ffn, ffn_matrices,
    granite_scales, transformer_metadata,
};
use crate::{Experts, Shape};

/// Value of `expert_gating_func` for a softmax.
pub(super) const SOFTMAX: usize = 1;
pub(crate) const SIGMOID: usize = 2;

/// Embedding and layers; `layer` gets the layer's number.
pub(crate) fn layers(
    shape: &Shape,
    plan: &mut ModelPlan,
    deviation: f32,
    layer: impl Fn(usize, &mut ModelPlan),
) {
    embedding(shape, plan, deviation);
    for il in 0..shape.n_layer {
        plan.layer(il);
        layer(il, plan);
    }
}

/// Metadata with experts of a width of their own.
pub(crate) fn metadata(shape: &Shape, plan: &mut ModelPlan) -> Result<Experts, String> {
    let experts = experts(shape)?;
    transformer_metadata(shape, plan);
    plan.count("expert_feed_forward_length", experts.n_ff);
    Ok(experts)
}

/// Metadata of architectures that have the experts' width under the dense FFN's key.
fn metadata_of_one_width(shape: &Shape, plan: &mut ModelPlan) -> Result<Experts, String> {
    let experts = metadata(shape, plan)?;
    plan.count("feed_forward_length", experts.n_ff);
    Ok(experts)
}

/// gpt-oss: sinks, windows in every second layer, YaRN, biases everywhere.
pub(crate) fn gpt_oss(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    let experts = metadata(shape, plan)?;
    window(shape, plan);
    yarn(shape, plan);
    layers(shape, plan, EMBEDDING, |_, plan| {
        attention(shape, plan);
        qkv_biases(shape, plan);
        plan.bias("attn_output", shape.n_embd);
        sinks(shape, plan);
        plan.norm("post_attention_norm", shape.n_embd);
        mixture(shape, plan, experts);
        expert_biases(shape, plan, experts);
    });
    Ok(())
}

/// glm4moe: half-rotated heads with norms and biases, a dense first layer, a block of multi-token prediction at
/// the end, which has experts too and is not run.
pub(crate) fn glm4moe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = metadata(shape, plan)?;
    half_rotated(shape, plan);
    deepseek_keys(plan, SIGMOID, true);
    let n_dense = dense_layers(shape);
    plan.count("leading_dense_block_count", n_dense);
    plan.count("nextn_predict_layers", 1);
    plan.count("block_count", shape.n_layer + 1);
    let layer = |il: usize, plan: &mut ModelPlan| {
        attention(shape, plan);
        qkv_biases(shape, plan);
        head_norms(shape, plan);
        plan.norm("post_attention_norm", shape.n_embd);
        dense_then_experts(shape, plan, il < n_dense, experts, experts.n_ff);
    };
    layers(shape, plan, EMBEDDING, layer);
    plan.layer(shape.n_layer);
    layer(shape.n_layer, plan);
    prediction(shape, plan);
    Ok(())
}

/// Keys of DeepSeek's line: one dense layer first, one shared expert.
pub(crate) fn deepseek_keys(plan: &mut ModelPlan, router: usize, norm: bool) {
    plan.count("leading_dense_block_count", 1);
    plan.count("expert_shared_count", 1);
    plan.number("expert_weights_scale", 2.5);
    plan.flag("expert_weights_norm", norm);
    plan.count("expert_gating_func", router);
}

/// A dense FFN in leading layers, then experts with a bias on the choice and a shared one.
pub(crate) fn dense_then_experts(
    shape: &Shape,
    plan: &mut ModelPlan,
    is_dense: bool,
    experts: Experts,
    n_shared: usize,
) {
    if is_dense {
        return ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    }
    mixture(shape, plan, experts);
    plan.bias("exp_probs_b", experts.count);
    ffn_matrices(plan, "_shexp", shape.n_embd, n_shared);
}

/// minimax-m2: half-rotated heads, norms over all of them, sigmoid router with a bias on the choice.
pub(crate) fn minimax_m2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    let experts = metadata_of_one_width(shape, plan)?;
    half_rotated(shape, plan);
    plan.count("expert_gating_func", SIGMOID);
    layers(shape, plan, EMBEDDING, |_, plan| {
        attention(shape, plan);
        wide_norms(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        mixture(shape, plan, experts);
        plan.bias("exp_probs_b", experts.count);
    });
    Ok(())
}

/// minimax-01: lightning attention, and in every fourth layer of these small models softmax attention.
pub(crate) fn minimax_01(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    const INTERVAL: usize = 4;
    let experts = metadata_of_one_width(shape, plan)?;
    half_rotated(shape, plan);
    plan.count("full_attention_interval", INTERVAL);
    plan.number("residual_scale", 0.5);
    let (n_embd, n_inner) = (shape.n_embd, shape.n_head * shape.head_dim);
    layers(shape, plan, EMBEDDING, |il, plan| {
        if (il + 1) % INTERVAL == 0 {
            attention(shape, plan);
        } else {
            plan.norm("attn_norm", n_embd);
            plan.matrix("attn_qkv", Role::Matrix, &[n_embd, 3 * n_inner], 1.0);
            plan.matrix("attn_gate", Role::Matrix, &[n_embd, n_inner], 1.0);
            plan.norm("attn_norm_2", n_inner);
            plan.matrix("attn_output", Role::AttnOutput, &[n_inner, n_embd], ATTENTION_GAIN);
        }
        plan.norm("ffn_norm", n_embd);
        mixture(shape, plan, experts);
    });
    Ok(())
}

/// llama4: experts in every second layer, beside a shared one.
pub(crate) fn llama4(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = metadata(shape, plan)?;
    plan.count("interleave_moe_layer_step", 2);
    plan.global_norm("rope_freqs", shape.head_dim / 2);
    layers(shape, plan, EMBEDDING, |il, plan| {
        attention(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        if il % 2 == 0 {
            return ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
        }
        mixture(shape, plan, experts);
        ffn_matrices(plan, "_shexp", shape.n_embd, experts.n_ff);
    });
    Ok(())
}

/// qwen2moe: qwen2's attention, a gated shared expert.
pub(crate) fn qwen2moe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    whole_heads(shape)?;
    let experts = metadata(shape, plan)?;
    plan.count("expert_shared_feed_forward_length", 2 * experts.n_ff);
    layers(shape, plan, EMBEDDING, |_, plan| {
        attention(shape, plan);
        qkv_biases(shape, plan);
        ffn(shape, plan);
        plan.matrix("ffn_gate_inp_shexp", Role::Precise, &[shape.n_embd], 1.0);
        ffn_matrices(plan, "_shexp", shape.n_embd, 2 * experts.n_ff);
    });
    Ok(())
}

/// deepseek, the first: weights as the softmax gives them, two shared experts.
pub(crate) fn deepseek(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    whole_heads(shape)?;
    let experts = metadata(shape, plan)?;
    plan.count("leading_dense_block_count", 1);
    plan.count("expert_shared_count", 2);
    plan.number("expert_weights_scale", 1.5);
    layers(shape, plan, EMBEDDING, |il, plan| {
        attention(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        if il == 0 {
            return ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
        }
        mixture(shape, plan, experts);
        ffn_matrices(plan, "_shexp", shape.n_embd, 2 * experts.n_ff);
    });
    Ok(())
}

/// dots1: as many KV heads as heads, with norms, DeepSeek's experts.
pub(crate) fn dots1(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    let shape = &Shape { n_head_kv: shape.n_head, ..shape.clone() };
    let experts = metadata(shape, plan)?;
    deepseek_keys(plan, SIGMOID, true);
    layers(shape, plan, EMBEDDING, |il, plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        dense_then_experts(shape, plan, il == 0, experts, experts.n_ff);
    });
    Ok(())
}

/// ernie4_5-moe: softmax router with a bias on the choice, a shared expert of its own width.
pub(crate) fn ernie4_5_moe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = metadata(shape, plan)?;
    plan.count("leading_dense_block_count", 1);
    plan.count("interleave_moe_layer_step", 1);
    plan.count("expert_shared_feed_forward_length", 2 * experts.n_ff);
    layers(shape, plan, EMBEDDING, |il, plan| {
        attention(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        dense_then_experts(shape, plan, il == 0, experts, 2 * experts.n_ff);
    });
    Ok(())
}

/// hunyuan-moe: norms of each head behind the rotation, a shared expert of its own width.
pub(crate) fn hunyuan_moe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = metadata_of_one_width(shape, plan)?;
    plan.count("expert_shared_feed_forward_length", 2 * experts.n_ff);
    layers(shape, plan, EMBEDDING, |_, plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        ffn(shape, plan);
        ffn_matrices(plan, "_shexp", shape.n_embd, 2 * experts.n_ff);
    });
    Ok(())
}

/// bailingmoe: llama's attention, experts beside a shared one in every layer.
pub(crate) fn bailingmoe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    let experts = metadata(shape, plan)?;
    deepseek_keys(plan, SOFTMAX, true);
    plan.count("leading_dense_block_count", 0);
    layers(shape, plan, EMBEDDING, |_, plan| {
        attention(shape, plan);
        ffn(shape, plan);
        ffn_matrices(plan, "_shexp", shape.n_embd, experts.n_ff);
    });
    Ok(())
}

/// bailingmoe2: fused projections, half-rotated heads with norms, groups of experts.
pub(crate) fn bailingmoe2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    whole_heads(shape)?;
    let experts = metadata(shape, plan)?;
    half_rotated(shape, plan);
    deepseek_keys(plan, SIGMOID, true);
    plan.count("expert_shared_feed_forward_length", 2 * experts.n_ff);
    if experts.count.is_multiple_of(8) && 2 * experts.used <= experts.count {
        plan.count("expert_group_count", 4);
        plan.count("expert_group_used_count", 2);
    }
    layers(shape, plan, EMBEDDING, |il, plan| {
        plan.norm("attn_norm", shape.n_embd);
        fused_projections(shape, plan);
        head_norms(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        dense_then_experts(shape, plan, il == 0, experts, 2 * experts.n_ff);
    });
    Ok(())
}

/// olmoe: as many KV heads as heads, norms over all of them, weights as the softmax gives them.
pub(crate) fn olmoe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    whole_heads(shape)?;
    let shape = &Shape { n_head_kv: shape.n_head, ..shape.clone() };
    metadata_of_one_width(shape, plan)?;
    layers(shape, plan, EMBEDDING, |_, plan| {
        attention(shape, plan);
        wide_norms(shape, plan);
        ffn(shape, plan);
    });
    Ok(())
}

/// granitemoe: granite's scales, experts beside a shared one.
pub(crate) fn granitemoe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = metadata_of_one_width(shape, plan)?;
    plan.count("expert_shared_feed_forward_length", 2 * experts.n_ff);
    let embedding_scale = granite_scales(shape, plan);
    layers(shape, plan, EMBEDDING / embedding_scale, |_, plan| {
        attention(shape, plan);
        ffn(shape, plan);
        ffn_matrices(plan, "_shexp", shape.n_embd, 2 * experts.n_ff);
    });
    Ok(())
}

/// arctic: a dense FFN behind attention, experts that read the layer's input.
pub(crate) fn arctic(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    whole_heads(shape)?;
    let experts = metadata_of_one_width(shape, plan)?;
    layers(shape, plan, EMBEDDING, |_, plan| {
        attention(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        ffn_matrices(plan, "", shape.n_embd, shape.n_embd);
        plan.norm("ffn_norm_exps", shape.n_embd);
        mixture(shape, plan, experts);
    });
    Ok(())
}

/// dbrx: LayerNorms without bias, clamped queries, keys and values.
pub(crate) fn dbrx(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    whole_heads(shape)?;
    let experts = metadata_of_one_width(shape, plan)?;
    plan.number("attention.layer_norm_epsilon", RMS_EPSILON);
    plan.number("attention.clamp_kqv", 1.2);
    layers(shape, plan, EMBEDDING, |_, plan| {
        plan.norm("attn_norm", shape.n_embd);
        fused_projections(shape, plan);
        plan.norm("attn_output_norm", shape.n_embd);
        mixture(shape, plan, experts);
    });
    Ok(())
}

/// grok as Grok 2 has it: bounds, scales, a dense FFN beside the experts.
pub(crate) fn grok(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    const EMBEDDING_SCALE: f32 = 4.0;
    whole_heads(shape)?;
    let experts = metadata(shape, plan)?;
    plan.number("embedding_scale", EMBEDDING_SCALE);
    plan.number("attention.output_scale", 1.0 / (shape.head_dim as f32).sqrt());
    plan.number("attn_logit_softcapping", 1.5);
    plan.number("final_logit_softcapping", 2.0);
    plan.number("logit_scale", 0.6);
    layers(shape, plan, EMBEDDING / EMBEDDING_SCALE, |_, plan| {
        plan.norm("attn_norm", shape.n_embd);
        projections(shape, plan);
        plan.norm("attn_output_norm", shape.n_embd);
        plan.norm("ffn_norm", shape.n_embd);
        ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
        mixture(shape, plan, experts);
        plan.norm("layer_output_norm", shape.n_embd);
    });
    Ok(())
}

/// phimoe: biases everywhere, of the norms and of the logits too; longrope.
pub(crate) fn phimoe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    whole_heads(shape)?;
    let experts = metadata_of_one_width(shape, plan)?;
    plan.count("rope.scaling.original_context_length", shape.context.div_ceil(2048));
    plan.number("rope.scaling.attn_factor", 1.19);
    plan.global_norm("rope_factors_long", shape.head_dim / 2);
    plan.global_norm("rope_factors_short", shape.head_dim / 2);
    layers(shape, plan, EMBEDDING, |_, plan| {
        plan.norm("attn_norm", shape.n_embd);
        plan.bias("attn_norm", shape.n_embd);
        projections(shape, plan);
        qkv_biases(shape, plan);
        plan.bias("attn_output", shape.n_embd);
        plan.norm("ffn_norm", shape.n_embd);
        plan.bias("ffn_norm", shape.n_embd);
        mixture(shape, plan, experts);
    });
    plan.global_bias("output_norm", shape.n_embd);
    plan.global_bias("output", shape.vocab);
    Ok(())
}
