//! Synthetic RWKV-7 models, alone and with Qwen's FFNs around them: which metadata and tensors they have.

use crate::Shape;
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{EMBEDDING, RMS_EPSILON, embedding, ffn, refuse_experts};

/// Spread of vectors that are added.
const SMALL: f32 = 0.1;
/// Spread of the shares that inputs take of the row before.
pub(super) const LERP: f32 = 0.3;

/// rwkv7: a head of the size is a head of the matrix state.
pub(crate) fn rwkv7(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    check(shape)?;
    let Shape { n_embd, n_ff, .. } = *shape;
    metadata(shape, plan, "attention.layer_norm_epsilon", 2);
    embedding(shape, plan, EMBEDDING);
    plan.global_norm("token_embd_norm", n_embd);
    plan.global_bias("token_embd_norm", n_embd);
    plan.global_bias("output_norm", n_embd);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", n_embd);
        plan.bias("attn_norm", n_embd);
        time_mix(n_embd, plan, true);
        plan.norm("attn_norm_2", n_embd);
        plan.bias("attn_norm_2", n_embd);
        plan.precise("channel_mix_lerp_k.weight", &[n_embd, 1, 1], Fill::Normal(LERP));
        plan.matrix("channel_mix_key", Role::Matrix, &[n_embd, n_ff], 1.0);
        plan.matrix("channel_mix_value", Role::FfnDown { expert: false }, &[n_ff, n_embd], 0.5);
    }
    Ok(())
}

/// arwkv7: RMS norms and Qwen's FFN. Published models have gates and norms of heads or do not. Here sizes have them in
/// which heads share keys and values.
pub(crate) fn arwkv7(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    check(shape)?;
    metadata(shape, plan, "attention.layer_norm_rms_epsilon", 1);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        time_mix(shape.n_embd, plan, shape.n_head_kv < shape.n_head);
        ffn(shape, plan);
    }
    Ok(())
}

/// Refuses heads that the kernels do not take.
pub(super) fn check(shape: &Shape) -> Result<(), String> {
    refuse_experts(shape)?;
    let Shape { n_embd, head_dim, tied, .. } = *shape;
    if tied {
        return Err("it has an output matrix of its own, choose a size that has".to_owned());
    }
    if n_embd.is_multiple_of(head_dim) && head_dim.is_multiple_of(16) {
        Ok(())
    } else {
        Err(format!("heads of {head_dim} do not fill a width of {n_embd}"))
    }
}

fn rank(n_embd: usize) -> usize {
    (n_embd / 16).next_multiple_of(8)
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
    for of in ["decay", "iclr", "value_residual_mix", "gate"] {
        plan.count(&format!("attention.{of}_lora_rank"), rank(shape.n_embd));
    }
    plan.count("vocab_size", shape.vocab);
}

/// Time mixing of rows of `n` values, with gates and norms of heads if it is `whole`.
fn time_mix(n: usize, plan: &mut ModelPlan, whole: bool) {
    let n_lerp = 5 + usize::from(whole);
    plan.precise("time_mix_lerp_fused.weight", &[n, 1, 1, n_lerp], Fill::Normal(LERP));
    for of in ["receptance", "key", "value"] {
        plan.matrix(&format!("time_mix_{of}"), Role::Matrix, &[n, n], 1.0);
    }
    plan.matrix("time_mix_output", Role::Matrix, &[n, n], 0.5);
    let low_rank = ["w", "a", "v", "g"].into_iter();
    for of in low_rank.filter(|&of| whole || of != "g") {
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
    ] {
        plan.precise(&format!("time_mix_{of}.weight"), &[n], fill);
    }
    if whole {
        plan.norm("time_mix_ln", n);
        plan.bias("time_mix_ln", n);
    }
}
