//! Synthetic decoders of later families with experts: windows, gates of heads, bounds of activations.

use super::mixtures::{SIGMOID, SOFTMAX, deepseek_keys, dense_then_experts, layers, metadata};
use super::plain::{
    count_predictions, dense_layers, experts, half_rotated, head_gate, head_norms, listed_windows,
    mixture, prediction, sinks, untied, window, yarn,
};
use crate::file_type::Role;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    EMBEDDING, attention, ffn, ffn_matrices, granite_scales, transformer_metadata,
};
use crate::{Experts, Shape};

/// Base of layers with windows that have one of their own.
const LOCAL_BASE: f32 = 500.0;
/// Bound of activations: a few of them are beyond it.
const LIMIT: f32 = 0.8;

/// granite_swa: granite's scales, sinks, windows, layers without rotation; the shared expert's gate and way up are one.
pub(crate) fn granite_swa(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = experts(shape)?;
    let one_width = &Shape { n_ff: experts.n_ff, ..shape.clone() };
    transformer_metadata(one_width, plan);
    let windows = listed_windows(shape, plan, 2);
    plan.counts("attention.rope_pattern", windows.iter().map(|&has| usize::from(has)));
    plan.count("expert_shared_feed_forward_length", 2 * experts.n_ff);
    let embedding_scale = granite_scales(shape, plan);
    layers(shape, plan, EMBEDDING / embedding_scale, |_, plan| {
        attention(shape, plan);
        sinks(shape, plan);
        ffn(shape, plan);
        let (n_embd, n_shared) = (shape.n_embd, 2 * experts.n_ff);
        plan.matrix("ffn_up_shexp", Role::Matrix, &[n_embd, 2 * n_shared], 1.0);
        let down = Role::FfnDown { expert: false };
        plan.matrix("ffn_down_shexp", down, &[n_shared, n_embd], 1.0);
    });
    Ok(())
}

/// mellum: qwen3moe's block, windows without YaRN.
pub(crate) fn mellum(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    metadata(shape, plan)?;
    window(shape, plan);
    plan.count("attention.sliding_window_pattern", 2);
    yarn(shape, plan);
    layers(shape, plan, EMBEDDING, |_, plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        ffn(shape, plan);
    });
    Ok(())
}

/// smallthinker: early routers, and windows with every fourth layer unrotated; where the output matrix is the embedding,
/// no windows and a sigmoid router.
pub(crate) fn smallthinker(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    metadata(shape, plan)?;
    if !shape.tied {
        plan.count("attention.sliding_window", 4096);
    }
    plan.count("expert_gating_func", if shape.tied { SIGMOID } else { SOFTMAX });
    layers(shape, plan, EMBEDDING, |_, plan| {
        attention(shape, plan);
        ffn(shape, plan);
    });
    Ok(())
}

/// grovemoe: qwen3moe's block, an adjugate expert for every two experts.
pub(crate) fn grovemoe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = metadata(shape, plan)?;
    if !experts.count.is_multiple_of(2) {
        return Err("its experts come in pairs, choose a size with an even number".to_owned());
    }
    let (n, n_ff) = (experts.count / 2, experts.n_ff / 2);
    plan.count("experts_per_group", 2);
    plan.count("expert_chunk_feed_forward_length", n_ff);
    plan.number("expert_group_scale", 0.5);
    layers(shape, plan, EMBEDDING, |_, plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        ffn(shape, plan);
        let (up, down) = ([shape.n_embd, n_ff, n], [n_ff, shape.n_embd, n]);
        plan.matrix("ffn_gate_chexps", Role::Expert, &up, 1.0);
        plan.matrix("ffn_up_chexps", Role::Expert, &up, 1.0);
        plan.matrix("ffn_down_chexps", Role::FfnDown { expert: true }, &down, 1.0);
    });
    Ok(())
}

/// maple: qwen3moe's block, rotation in windows alone, bounded gates.
pub(crate) fn maple(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    metadata(shape, plan)?;
    half_rotated(shape, plan);
    listed_windows(shape, plan, 2);
    plan.numbers("swiglu_clamp_exp", vec![LIMIT; shape.n_layer]);
    layers(shape, plan, EMBEDDING, |_, plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        ffn(shape, plan);
    });
    Ok(())
}

/// exaone-moe: windows with rotation, others without, DeepSeek's experts, a block of multi-token prediction.
pub(crate) fn exaone_moe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    let experts = metadata(shape, plan)?;
    deepseek_keys(plan, SIGMOID, true);
    let n_dense = dense_layers(shape);
    plan.count("leading_dense_block_count", n_dense);
    plan.count("expert_shared_feed_forward_length", 2 * experts.n_ff);
    plan.count("nextn_predict_layers", 1);
    plan.count("block_count", shape.n_layer + 1);
    window(shape, plan);
    layers(shape, plan, EMBEDDING, |il, plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        dense_then_experts(shape, plan, il < n_dense, experts, 2 * experts.n_ff);
    });
    plan.layer(shape.n_layer);
    attention(shape, plan);
    head_norms(shape, plan);
    plan.norm("ffn_norm", shape.n_embd);
    ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    prediction(shape, plan);
    Ok(())
}

/// afmoe: a gate for each value of a head, norms around everything, DeepSeek's experts.
pub(crate) fn afmoe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = metadata(shape, plan)?;
    deepseek_keys(plan, SIGMOID, true);
    window(shape, plan);
    plan.number("rope.freq_base_swa", LOCAL_BASE);
    plan.count("attention.sliding_window_pattern", 2);
    layers(shape, plan, EMBEDDING / (shape.n_embd as f32).sqrt(), |il, plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        head_gate(shape, plan, shape.n_head * shape.head_dim);
        plan.norm("post_attention_norm", shape.n_embd);
        plan.norm("ffn_norm", shape.n_embd);
        dense_then_experts(shape, plan, il == 0, experts, experts.n_ff);
        plan.norm("post_ffw_norm", shape.n_embd);
    });
    Ok(())
}

/// cohere2moe: attention and experts that read the same rows, LayerNorms where the output matrix is the embedding.
pub(crate) fn cohere2moe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = metadata(shape, plan)?;
    if shape.tied {
        let epsilon = "attention.layer_norm_rms_epsilon";
        plan.metadata.retain(|(key, _)| !key.ends_with(epsilon));
        plan.number("attention.layer_norm_epsilon", crate::shared_parts::RMS_EPSILON);
    }
    window(shape, plan);
    deepseek_keys(plan, SIGMOID, true);
    plan.count("expert_shared_feed_forward_length", 2 * experts.n_ff);
    plan.number("logit_scale", 0.5);
    count_predictions(shape, plan, shape.drafts);
    let layer = |il: usize, plan: &mut ModelPlan| {
        attention(shape, plan);
        if il == 0 {
            return ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
        }
        mixture(shape, plan, experts);
        ffn_matrices(plan, "_shexp", shape.n_embd, 2 * experts.n_ff);
    };
    layers(shape, plan, EMBEDDING, layer);
    for il in shape.n_layer..shape.n_layer + shape.drafts {
        plan.layer(il);
        layer(il, plan);
        prediction(shape, plan);
    }
    Ok(())
}

/// hy_v3: qwen3's attention, experts beside a shared one, a block of multi-token prediction.
pub(crate) fn hy_v3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = metadata(shape, plan)?;
    plan.number("expert_weights_scale", 2.5);
    plan.flag("expert_weights_norm", true);
    plan.count("expert_shared_feed_forward_length", 2 * experts.n_ff);
    let n_all = shape.n_layer + shape.drafts.max(1);
    count_predictions(shape, plan, shape.drafts.max(1));
    let layer = |il: usize, plan: &mut ModelPlan| {
        attention(shape, plan);
        head_norms(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        if il == 0 {
            return ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
        }
        mixture(shape, plan, experts);
        plan.bare_bias("exp_probs_b", experts.count);
        ffn_matrices(plan, "_shexp", shape.n_embd, 2 * experts.n_ff);
    };
    layers(shape, plan, EMBEDDING, layer);
    for il in shape.n_layer..n_all {
        plan.layer(il);
        layer(il, plan);
        prediction(shape, plan);
    }
    Ok(())
}

/// `shape` as a layer with a window has it: twice the heads.
fn of_window(shape: &Shape, has: bool) -> Shape {
    Shape { n_head: if has { 2 * shape.n_head } else { shape.n_head }, ..shape.clone() }
}

/// laguna: a softplus for each head (or, where the output matrix is the embedding, for each value of it), more heads in
/// windows, which have no YaRN.
pub(crate) fn laguna(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = metadata(shape, plan)?;
    deepseek_keys(plan, SIGMOID, true);
    yarn(shape, plan);
    half_rotated(shape, plan);
    window(shape, plan);
    plan.count("rope.dimension_count_swa", shape.head_dim);
    plan.number("rope.freq_base_swa", LOCAL_BASE);
    plan.count("expert_shared_feed_forward_length", 2 * experts.n_ff);
    let has_window = |il: usize| !il.is_multiple_of(4);
    let heads = (0..shape.n_layer).map(|il| of_window(shape, has_window(il)).n_head);
    plan.counts("attention.head_count", heads);
    layers(shape, plan, EMBEDDING, |il, plan| {
        let shape = &of_window(shape, has_window(il));
        attention(shape, plan);
        head_norms(shape, plan);
        let width = if shape.tied { shape.head_dim } else { 1 };
        head_gate(shape, plan, width * shape.n_head);
        plan.norm("ffn_norm", shape.n_embd);
        dense_then_experts(shape, plan, il == 0, experts, 2 * experts.n_ff);
    });
    Ok(())
}

/// mimo2: narrow values, sinks in windows, a scale of what attention gives.
pub(crate) fn mimo2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    let experts = metadata(shape, plan)?;
    let (n_embd, value) = (shape.n_embd, shape.head_dim / 2);
    plan.count("attention.value_length", value);
    half_rotated(shape, plan);
    let windows = listed_windows(shape, plan, 2);
    let n_all = shape.n_layer + shape.drafts;
    count_predictions(shape, plan, shape.drafts);
    // Blocks of prediction have windows too.
    let has_window = |il: usize| windows.get(il).copied().unwrap_or(true);
    if shape.drafts > 0 {
        let flags = (0..n_all).map(|il| usize::from(has_window(il)));
        plan.counts("attention.sliding_window_pattern", flags);
    }
    let kv_heads = |il: usize| if has_window(il) { shape.n_head } else { shape.n_head_kv };
    plan.counts("attention.head_count_kv", (0..n_all).map(kv_heads));
    plan.number("rope.freq_base", 1_000_000.0);
    plan.number("attention.value_scale", 0.7);
    layers(shape, plan, EMBEDDING, |il, plan| {
        let n_kv = kv_heads(il);
        plan.norm("attn_norm", n_embd);
        plan.matrix("attn_q", Role::Matrix, &[n_embd, shape.n_head * shape.head_dim], 1.0);
        plan.matrix("attn_k", Role::AttnK, &[n_embd, n_kv * shape.head_dim], 1.0);
        plan.matrix("attn_v", Role::AttnV, &[n_embd, n_kv * value], 1.0);
        plan.matrix("attn_output", Role::AttnOutput, &[shape.n_head * value, n_embd], 1.0);
        if windows[il] {
            sinks(shape, plan);
        }
        plan.norm("ffn_norm", n_embd);
        if il == 0 {
            return ffn_matrices(plan, "", n_embd, shape.n_ff);
        }
        mixture(shape, plan, experts);
        plan.bias("exp_probs_b", experts.count);
    });
    for il in shape.n_layer..n_all {
        plan.layer(il);
        plan.norm("attn_norm", n_embd);
        let keys = (shape.n_head + kv_heads(il)) * shape.head_dim;
        let all = keys + kv_heads(il) * value;
        plan.matrix("attn_qkv", Role::Matrix, &[n_embd, all], 1.0);
        plan.matrix("attn_output", Role::AttnOutput, &[shape.n_head * value, n_embd], 1.0);
        sinks(shape, plan);
        plan.norm("ffn_norm", n_embd);
        ffn_matrices(plan, "", n_embd, shape.n_ff);
        prediction(shape, plan);
    }
    Ok(())
}

/// step35: a sigmoid for each head, more heads in windows, bounded activations, blocks of multi-token prediction.
pub(crate) fn step35(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    let experts = metadata(shape, plan)?;
    plan.number("expert_weights_scale", 1.5);
    plan.flag("expert_weights_norm", true);
    plan.count("expert_shared_feed_forward_length", 2 * experts.n_ff);
    let n_all = shape.n_layer + shape.drafts.max(1);
    count_predictions(shape, plan, shape.drafts.max(1));
    window(shape, plan);
    let has_window = |il: usize| il % 2 == 1;
    plan.counts(
        "attention.sliding_window_pattern",
        (0..n_all).map(|il| usize::from(has_window(il))),
    );
    plan.counts(
        "attention.head_count",
        (0..n_all).map(|il| of_window(shape, has_window(il)).n_head),
    );
    plan.number("rope.freq_base", 1_000_000.0);
    plan.global_norm("rope_freqs", shape.head_dim / 2);
    let limit = |il: usize| if il == 2 { LIMIT } else { 0.0 };
    plan.numbers("swiglu_clamp_exp", (0..n_all).map(limit));
    plan.numbers("swiglu_clamp_shexp", (0..n_all).map(|il| limit(il + 1) + limit(il)));
    let layer =
        |il: usize, plan: &mut ModelPlan| step_layer(shape, plan, il, has_window(il), experts);
    layers(shape, plan, EMBEDDING, layer);
    for il in shape.n_layer..n_all {
        plan.layer(il);
        layer(il, plan);
        prediction(shape, plan);
    }
    Ok(())
}

fn step_layer(shape: &Shape, plan: &mut ModelPlan, il: usize, windowed: bool, experts: Experts) {
    let shape = &of_window(shape, windowed);
    attention(shape, plan);
    head_norms(shape, plan);
    head_gate(shape, plan, shape.n_head);
    plan.norm("ffn_norm", shape.n_embd);
    if il < 2 {
        return ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    }
    mixture(shape, plan, experts);
    plan.bias("exp_probs_b", experts.count);
    ffn_matrices(plan, "_shexp", shape.n_embd, 2 * experts.n_ff);
}
