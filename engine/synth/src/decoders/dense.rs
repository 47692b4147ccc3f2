//! Synthetic decoders without experts. Each is llama's block with some changes.

use super::plain::{
    fused_ffn, fused_projections, half_rotated, head_norms, projections, qkv_biases, untied,
    whole_heads, wide_norms, window, yarn,
};
use crate::Shape;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    EMBEDDING, RMS_EPSILON, attention, embedding, ffn, ffn_matrices, refuse_experts,
    transformer_metadata,
};

/// Metadata of a transformer without experts, then its layers.
pub(super) fn layers(
    shape: &Shape,
    plan: &mut ModelPlan,
    deviation: f32,
    layer: impl Fn(&mut ModelPlan),
) -> Result<(), String> {
    refuse_experts(shape)?;
    embedding(shape, plan, deviation);
    for il in 0..shape.n_layer {
        plan.layer(il);
        layer(plan);
    }
    Ok(())
}

/// glm4: biases, a fused way up, norms of what attention and FFN give, rotation of half a head.
pub(crate) fn glm4(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    transformer_metadata(shape, plan);
    half_rotated(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        qkv_biases(shape, plan);
        plan.norm("post_attention_norm", shape.n_embd);
        plan.norm("ffn_norm", shape.n_embd);
        fused_ffn(shape, plan);
        plan.norm("post_ffw_norm", shape.n_embd);
    })
}

/// gemma2: windows in every second layer, bounds, norms around everything.
pub(crate) fn gemma2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    tied(shape)?;
    transformer_metadata(shape, plan);
    window(shape, plan);
    plan.number("attn_logit_softcapping", 1.5);
    plan.number("final_logit_softcapping", 2.0);
    layers(shape, plan, EMBEDDING / (shape.n_embd as f32).sqrt(), |plan| gemma_layer(shape, plan))
}

/// gemma3: windows in all layers but every last of a group, with a rotation of their own, and norms of each head too.
pub(crate) fn gemma3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    tied(shape)?;
    transformer_metadata(shape, plan);
    window(shape, plan);
    plan.count("attention.sliding_window_pattern", if shape.n_layer < 6 { 3 } else { 6 });
    plan.number("rope.freq_base", 1_000_000.0);
    plan.text("rope.scaling.type", "linear");
    plan.number("rope.scaling.factor", 8.0);
    layers(shape, plan, EMBEDDING / (shape.n_embd as f32).sqrt(), |plan| {
        gemma_layer(shape, plan);
        head_norms(shape, plan);
    })
}

/// Refuses a shape whose output matrix is not the embedding.
fn tied(shape: &Shape) -> Result<(), String> {
    if shape.tied {
        Ok(())
    } else {
        Err("its output matrix is the embedding, choose a size where it is".to_owned())
    }
}

fn gemma_layer(shape: &Shape, plan: &mut ModelPlan) {
    attention(shape, plan);
    plan.norm("post_attention_norm", shape.n_embd);
    ffn(shape, plan);
    plan.norm("post_ffw_norm", shape.n_embd);
}

/// mistral3: YaRN with a ramp and a magnitude of its own, queries that grow every 32 positions (in a
/// context of 32768).
pub(crate) fn mistral3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    transformer_metadata(shape, plan);
    yarn(shape, plan);
    plan.count("rope.scaling.original_context_length", shape.context.div_ceil(1024));
    plan.number("rope.scaling.yarn_beta_fast", 4.0);
    plan.number("rope.scaling.yarn_beta_slow", 0.5);
    plan.number("rope.scaling.yarn_log_multiplier", 0.7);
    plan.number("attention.temperature_scale", 0.3);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        ffn(shape, plan);
    })
}

/// phi3: fused projections and way up, longrope over half of each head.
pub(crate) fn phi3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    whole_heads(shape)?;
    transformer_metadata(shape, plan);
    half_rotated(shape, plan);
    plan.count("rope.scaling.original_context_length", shape.context.div_ceil(2048));
    plan.number("rope.scaling.attn_factor", 1.19);
    plan.global_norm("rope_factors_long", shape.head_dim / 4);
    plan.global_norm("rope_factors_short", shape.head_dim / 4);
    layers(shape, plan, EMBEDDING, |plan| {
        plan.norm("attn_norm", shape.n_embd);
        fused_projections(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        fused_ffn(shape, plan);
    })
}

/// ernie4_5: llama's block.
pub(crate) fn ernie4_5(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    plain(shape, plan)
}

/// smollm3: llama's block, every fourth layer without rotation.
pub(crate) fn smollm3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    plain(shape, plan)
}

fn plain(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    transformer_metadata(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        ffn(shape, plan);
    })
}

/// hunyuan-dense: norms of each head behind a rotation whose base is stretched.
pub(crate) fn hunyuan_dense(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    transformer_metadata(shape, plan);
    plan.number("rope.scaling.alpha", 50.0);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        ffn(shape, plan);
    })
}

/// seed_oss: biases, the FFN's norm under another name.
pub(crate) fn seed_oss(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    transformer_metadata(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        qkv_biases(shape, plan);
        plan.norm("post_attention_norm", shape.n_embd);
        ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    })
}

/// command-r: attention and FFN beside each other, norms of each head in models of 64 layers and more.
pub(crate) fn command_r(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    cohere_metadata(shape, plan)?;
    layers(shape, plan, EMBEDDING, |plan| {
        cohere_layer(shape, plan);
        if shape.n_layer >= 64 {
            plan.matrix_norm("attn_q_norm", &[shape.head_dim, shape.n_head]);
            plan.matrix_norm("attn_k_norm", &[shape.head_dim, shape.n_head_kv]);
        }
    })
}

/// cohere2: command-r with windows in three of four layers, which alone are rotated.
pub(crate) fn cohere2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    cohere_metadata(shape, plan)?;
    window(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| cohere_layer(shape, plan))
}

fn cohere_metadata(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    tied(shape)?;
    whole_heads(shape)?;
    transformer_metadata(shape, plan);
    plan.number("attention.layer_norm_epsilon", RMS_EPSILON);
    plan.number("logit_scale", 0.25);
    Ok(())
}

fn cohere_layer(shape: &Shape, plan: &mut ModelPlan) {
    attention(shape, plan);
    ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
}

/// olmo2 as OLMo 3 has it: norms behind attention and FFN, windows in three of four layers, YaRN in the
/// fourth.
pub(crate) fn olmo2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    whole_heads(shape)?;
    transformer_metadata(shape, plan);
    window(shape, plan);
    yarn(shape, plan);
    plan.number("rope.scaling.yarn_attn_factor", 1.2);
    layers(shape, plan, EMBEDDING, |plan| {
        projections(shape, plan);
        wide_norms(shape, plan);
        post_norms_and_ffn(shape, plan);
    })
}

/// exaone4: norms behind attention and FFN and of each head, windows in the model of 64 layers.
pub(crate) fn exaone4(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    whole_heads(shape)?;
    transformer_metadata(shape, plan);
    if shape.n_layer == 64 {
        window(shape, plan);
    }
    plan.global_norm("rope_freqs", shape.head_dim / 2);
    layers(shape, plan, EMBEDDING, |plan| {
        projections(shape, plan);
        head_norms(shape, plan);
        post_norms_and_ffn(shape, plan);
    })
}

fn post_norms_and_ffn(shape: &Shape, plan: &mut ModelPlan) {
    plan.norm("post_attention_norm", shape.n_embd);
    ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    plan.norm("post_ffw_norm", shape.n_embd);
}
