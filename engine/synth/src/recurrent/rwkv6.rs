//! Synthetic RWKV-6 models, alone and with Qwen's FFNs around them: which metadata and tensors they have.

use super::rwkv7::{LERP, check};
use crate::Shape;
use crate::decoders::plain::whole_heads;
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{EMBEDDING, RMS_EPSILON, embedding, ffn};

/// Layers after which rwkv6 halves its residual stream.
const RESCALED: usize = 2;

/// rwkv6: its layers halve the residual stream now and then.
pub(crate) fn rwkv6(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    check(shape)?;
    let Shape { n_embd, n_ff, head_dim, .. } = *shape;
    metadata(shape, plan, "attention.layer_norm_epsilon", 2);
    plan.count("rescale_every_n_layers", RESCALED);
    embedding(shape, plan, EMBEDDING);
    plan.global_norm("token_embd_norm", n_embd);
    plan.global_bias("token_embd_norm", n_embd);
    plan.global_bias("output_norm", n_embd);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", n_embd);
        plan.bias("attn_norm", n_embd);
        time_mix(shape, plan, n_embd);
        let heads = [head_dim, n_embd / head_dim];
        plan.precise("time_mix_first.weight", &heads, Fill::Normal(0.5));
        plan.norm("time_mix_ln", n_embd);
        plan.bias("time_mix_ln", n_embd);
        plan.norm("attn_norm_2", n_embd);
        plan.bias("attn_norm_2", n_embd);
        for of in ["k", "r"] {
            let name = format!("channel_mix_lerp_{of}.weight");
            plan.precise(&name, &[n_embd, 1, 1], Fill::Normal(LERP));
        }
        plan.matrix("channel_mix_key", Role::Matrix, &[n_embd, n_ff], 1.0);
        plan.matrix("channel_mix_receptance", Role::Matrix, &[n_embd; 2], 1.0);
        plan.matrix("channel_mix_value", Role::FfnDown { expert: false }, &[n_ff, n_embd], 0.5);
    }
    Ok(())
}

/// rwkv6qwen2: RMS norms, Qwen's FFN, biases, and heads that share keys and values.
pub(crate) fn rwkv6qwen2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    check(shape)?;
    whole_heads(shape)?;
    let n_kv = shape.n_head_kv * shape.head_dim;
    metadata(shape, plan, "attention.layer_norm_rms_epsilon", 1);
    plan.count("attention.head_count", shape.n_head);
    plan.count("attention.head_count_kv", shape.n_head_kv);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        time_mix(shape, plan, n_kv);
        plan.bias("time_mix_receptance", shape.n_embd);
        plan.bias("time_mix_key", n_kv);
        plan.bias("time_mix_value", n_kv);
        ffn(shape, plan);
    }
    Ok(())
}

fn rank(n_embd: usize) -> usize {
    (n_embd / 32).next_multiple_of(16)
}

fn metadata(shape: &Shape, plan: &mut ModelPlan, epsilon: &str, n_shifts: usize) {
    plan.count("context_length", shape.context);
    plan.count("embedding_length", shape.n_embd);
    plan.count("block_count", shape.n_layer);
    plan.count("feed_forward_length", shape.n_ff);
    plan.count("attention.head_count", 0);
    plan.number(epsilon, RMS_EPSILON);
    plan.count("wkv.head_size", shape.head_dim);
    plan.count("token_shift_count", n_shifts);
    plan.count("time_mix_extra_dim", rank(shape.n_embd));
    plan.count("time_decay_extra_dim", 2 * rank(shape.n_embd));
    plan.count("vocab_size", shape.vocab);
}

/// Time mixing with keys and values of `n_kv` in all.
fn time_mix(shape: &Shape, plan: &mut ModelPlan, n_kv: usize) {
    let (n, rank) = (shape.n_embd, rank(shape.n_embd));
    plan.precise("time_mix_lerp_x.weight", &[n, 1, 1], Fill::Normal(LERP));
    plan.precise("time_mix_lerp_fused.weight", &[n, 1, 1, 5], Fill::Normal(LERP));
    plan.matrix("time_mix_w1", Role::Matrix, &[n, 5 * rank], 1.0);
    plan.matrix("time_mix_w2", Role::Matrix, &[rank, n, 5], LERP);
    plan.matrix("time_mix_receptance", Role::Matrix, &[n; 2], 1.0);
    plan.matrix("time_mix_key", Role::Matrix, &[n, n_kv], 1.0);
    plan.matrix("time_mix_value", Role::Matrix, &[n, n_kv], 1.0);
    plan.matrix("time_mix_gate", Role::Matrix, &[n; 2], 1.0);
    plan.matrix("time_mix_output", Role::Matrix, &[n; 2], 0.5);
    plan.precise("time_mix_decay.weight", &[n], Fill::Normal(1.0));
    plan.matrix("time_mix_decay_w1", Role::Matrix, &[n, 2 * rank], 1.0);
    plan.matrix("time_mix_decay_w2", Role::Matrix, &[2 * rank, n], 1.0);
}
