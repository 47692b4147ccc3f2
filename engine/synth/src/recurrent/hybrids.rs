//! Synthetic models with Mamba mixers or short convolutions: which metadata and tensors each architecture
//! has.

use crate::Shape;
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    EMBEDDING, RMS_EPSILON, attention, embedding, embedding_matrices, ffn, refuse_experts,
    transformer_metadata,
};

/// States of a Mamba channel.
const N_STATE: usize = 16;
const CONV_TAPS: usize = 4;
/// Spread of the decay rates around -1.
const DECAY_SPREAD: f32 = 0.25;
/// Spread of skip weights around 1.
const SMALL: f32 = 0.1;

/// mamba: layers of mixers alone.
pub(crate) fn mamba(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    mamba_metadata(shape, plan);
    plan.count("context_length", shape.context);
    plan.count("embedding_length", shape.n_embd);
    plan.count("block_count", shape.n_layer);
    plan.count("feed_forward_length", 0);
    plan.count("attention.head_count", 0);
    plan.number("attention.layer_norm_rms_epsilon", RMS_EPSILON);
    plan.count("vocab_size", shape.vocab);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        mamba_mixer(shape, plan, false);
    }
    Ok(())
}

/// jamba: of four layers the third has attention, the others a Mamba mixer with norms; every second
/// layer has experts where the size has some.
pub(crate) fn jamba(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    whole_heads(shape)?;
    // The FFN's key stands for experts as well.
    let n_ff = shape.experts.map_or(shape.n_ff, |experts| experts.n_ff);
    let shape = &Shape { n_ff, ..shape.clone() };
    hybrid_metadata(shape, plan);
    mamba_metadata(shape, plan);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        if has_attention(il) {
            attention(shape, plan);
        } else {
            mamba_mixer(shape, plan, true);
        }
        let experts = shape.experts.filter(|_| il % 2 == 1);
        ffn(&Shape { experts, ..shape.clone() }, plan);
    }
    Ok(())
}

/// lfm2: of four layers the third has attention, the others a short convolution.
pub(crate) fn lfm2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    lfm2_layers(shape, plan, shape.n_layer)
}

/// lfm2moe: lfm2 with experts behind a sigmoid router after the first layer.
pub(crate) fn lfm2moe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = shape.experts.ok_or("it has experts, choose a size that has them")?;
    plan.count("expert_feed_forward_length", experts.n_ff);
    plan.count("leading_dense_block_count", 1);
    plan.count("expert_gating_func", 2);
    lfm2_layers(shape, plan, 1)
}

fn lfm2_layers(shape: &Shape, plan: &mut ModelPlan, n_dense: usize) -> Result<(), String> {
    whole_heads(shape)?;
    hybrid_metadata(shape, plan);
    plan.count("shortconv.l_cache", CONV_TAPS - 1);
    embedding_matrices(shape, plan, EMBEDDING);
    plan.global_norm("token_embd_norm", shape.n_embd);
    for il in 0..shape.n_layer {
        plan.layer(il);
        if has_attention(il) {
            attention(shape, plan);
            plan.norm("attn_q_norm", shape.head_dim);
            plan.norm("attn_k_norm", shape.head_dim);
        } else {
            short_conv(shape, plan);
        }
        let experts = shape.experts.filter(|_| il >= n_dense);
        ffn(&Shape { experts, ..shape.clone() }, plan);
        if let Some(experts) = experts {
            plan.bias("exp_probs_b", experts.count);
        }
    }
    Ok(())
}

fn has_attention(il: usize) -> bool {
    il % 4 == 2
}

/// A transformer's metadata with KV heads where there is attention.
fn hybrid_metadata(shape: &Shape, plan: &mut ModelPlan) {
    transformer_metadata(shape, plan);
    let heads = (0..shape.n_layer).map(|il| if has_attention(il) { shape.n_head_kv } else { 0 });
    plan.counts("attention.head_count_kv", heads);
}

fn whole_heads(shape: &Shape) -> Result<(), String> {
    if shape.n_head * shape.head_dim == shape.n_embd {
        return Ok(());
    }
    Err("the heads together must be as wide as the residual stream".to_owned())
}

fn mamba_metadata(shape: &Shape, plan: &mut ModelPlan) {
    plan.count("ssm.conv_kernel", CONV_TAPS);
    plan.count("ssm.inner_size", 2 * shape.n_embd);
    plan.count("ssm.state_size", N_STATE);
    plan.count("ssm.time_step_rank", dt_rank(shape));
}

fn dt_rank(shape: &Shape) -> usize {
    shape.n_embd.div_ceil(16)
}

fn mamba_mixer(shape: &Shape, plan: &mut ModelPlan, norms: bool) {
    let (d, rank) = (2 * shape.n_embd, dt_rank(shape));
    plan.norm("attn_norm", shape.n_embd);
    plan.matrix("ssm_in", Role::Matrix, &[shape.n_embd, 2 * d], 1.0);
    plan.matrix("ssm_conv1d", Role::Precise, &[CONV_TAPS, d], 1.0);
    plan.bias("ssm_conv1d", d);
    plan.matrix("ssm_x", Role::Matrix, &[d, rank + 2 * N_STATE], 1.0);
    if norms {
        plan.norm("ssm_dt_norm", rank);
        plan.norm("ssm_b_norm", N_STATE);
        plan.norm("ssm_c_norm", N_STATE);
    }
    plan.matrix("ssm_dt", Role::Matrix, &[rank, d], 1.0);
    plan.bias("ssm_dt", d);
    plan.precise("ssm_a", &[N_STATE, d], Fill::Decay(DECAY_SPREAD));
    plan.precise("ssm_d", &[d], Fill::AroundOne(SMALL));
    plan.matrix("ssm_out", Role::Matrix, &[d, shape.n_embd], 1.0);
}

fn short_conv(shape: &Shape, plan: &mut ModelPlan) {
    let d = shape.n_embd;
    plan.norm("attn_norm", d);
    plan.matrix("shortconv.in_proj", Role::Matrix, &[d, 3 * d], 1.0);
    plan.matrix("shortconv.conv", Role::Precise, &[CONV_TAPS - 1, d], 1.0);
    plan.matrix("shortconv.out_proj", Role::Matrix, &[d, d], 1.0);
}
