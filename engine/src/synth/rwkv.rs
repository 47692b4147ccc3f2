//! Synthetic RWKV-7 models: which metadata and tensors they have.

use super::Shape;
use super::file_type::Role;
use super::noise::Fill;
use super::parts::{EMBEDDING, RMS_EPSILON, embedding, refuse_experts};
use super::plan::ModelPlan;

/// Spread of vectors that are added.
const SMALL: f32 = 0.1;
/// Spread of the shares that inputs take of the row before.
const LERP: f32 = 0.3;

/// rwkv7: a head of the size is a head of the matrix state.
pub(super) fn rwkv7(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    let Shape { n_embd, n_ff, head_dim, .. } = *shape;
    if !n_embd.is_multiple_of(head_dim) || !head_dim.is_multiple_of(16) {
        return Err(format!("heads of {head_dim} do not fill a width of {n_embd}"));
    }
    metadata(shape, plan);
    embedding(shape, plan, EMBEDDING);
    plan.global_norm("token_embd_norm", n_embd);
    plan.global_bias("token_embd_norm", n_embd);
    plan.global_bias("output_norm", n_embd);
    for il in 0..shape.n_layer {
        plan.layer(il);
        time_mix(n_embd, plan);
        plan.norm("attn_norm_2", n_embd);
        plan.bias("attn_norm_2", n_embd);
        plan.precise("channel_mix_lerp_k.weight", &[n_embd, 1, 1], Fill::Normal(LERP));
        plan.matrix("channel_mix_key", Role::Matrix, &[n_embd, n_ff], 1.0);
        plan.matrix("channel_mix_value", Role::FfnDown { expert: false }, &[n_ff, n_embd], 0.5);
    }
    Ok(())
}

fn rank(n_embd: usize) -> usize {
    (n_embd / 16).next_multiple_of(8)
}

fn metadata(shape: &Shape, plan: &mut ModelPlan) {
    plan.count("context_length", shape.context);
    plan.count("embedding_length", shape.n_embd);
    plan.count("block_count", shape.n_layer);
    plan.count("feed_forward_length", shape.n_ff);
    plan.count("attention.head_count", 0);
    plan.number("attention.layer_norm_epsilon", RMS_EPSILON);
    plan.count("wkv.head_size", shape.head_dim);
    plan.count("token_shift_count", 2);
    for of in ["decay", "iclr", "value_residual_mix", "gate"] {
        plan.count(&format!("attention.{of}_lora_rank"), rank(shape.n_embd));
    }
    plan.count("vocab_size", shape.vocab);
}

fn time_mix(n: usize, plan: &mut ModelPlan) {
    plan.norm("attn_norm", n);
    plan.bias("attn_norm", n);
    plan.precise("time_mix_lerp_fused.weight", &[n, 1, 1, 6], Fill::Normal(LERP));
    for of in ["receptance", "key", "value"] {
        plan.matrix(&format!("time_mix_{of}"), Role::Matrix, &[n, n], 1.0);
    }
    plan.matrix("time_mix_output", Role::Matrix, &[n, n], 0.5);
    for of in ["w", "a", "v", "g"] {
        let mut vector = |part: &str, fill| {
            plan.precise(&format!("time_mix_{of}{part}.weight"), &[n], fill);
        };
        if of != "g" {
            vector("0", Fill::Normal(1.0));
        }
        let rank = rank(n);
        plan.matrix(&format!("time_mix_{of}1"), Role::Matrix, &[n, rank], 1.0);
        plan.matrix(&format!("time_mix_{of}2"), Role::Matrix, &[rank, n], 1.0);
    }
    for (of, fill) in [
        ("k_k", Fill::AroundOne(SMALL)),
        ("k_a", Fill::AroundOne(SMALL)),
        ("r_k", Fill::Normal(SMALL)),
        ("ln", Fill::AroundOne(SMALL)),
    ] {
        plan.precise(&format!("time_mix_{of}.weight"), &[n], fill);
    }
    plan.bias("time_mix_ln", n);
}
