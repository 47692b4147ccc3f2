//! Synthetic models of Kimi K3's architecture: Kimi Linear's mixers, experts that work in a narrower space,
//! and residual attention over depth.

use super::deepseek::{self, Latent};
use super::kimi::{self, Gates};
use crate::file_type::Role;
use crate::plan::ModelPlan;
use crate::shared_parts::{EMBEDDING, base_metadata, embedding, ffn_matrices, gated_experts};
use crate::{Experts, Shape};

/// Most rows that are kept of a token.
const MAX_KEPT: usize = 8;
/// Experts that every token uses, in one.
const N_SHARED: usize = 2;
/// The first layers, without experts.
const N_DENSE: usize = 1;

/// kimi-k3: every fourth layer and the last have latent attention, all but the first have experts.
pub(crate) fn kimi_k3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = shape.experts.ok_or("it has experts, choose a size that has them")?;
    let shape = &Shape { tied: false, ..shape.clone() };
    let latent = Latent::of(shape);
    metadata(shape, experts, &latent, plan);
    embedding(shape, plan, EMBEDDING);
    score(plan, "output", shape.n_embd);
    for il in 0..shape.n_layer {
        plan.layer(il);
        layer_score(plan, "attn", shape.n_embd);
        layer_score(plan, "ffn", shape.n_embd);
        if is_latent(il, shape) {
            deepseek::latent_attention(shape, &latent, plan);
            let gate = [shape.n_embd, shape.n_head * shape.head_dim];
            plan.matrix("attn_gate", Role::Matrix, &gate, 1.0);
        } else {
            plan.norm("attn_norm", shape.n_embd);
            kimi::kda(shape, Gates::FullOutput, plan);
        }
        plan.norm("ffn_norm", shape.n_embd);
        if il < N_DENSE {
            ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
        } else {
            latent_experts(shape, experts, plan);
        }
    }
    Ok(())
}

fn metadata(shape: &Shape, experts: Experts, latent: &Latent, plan: &mut ModelPlan) {
    base_metadata(shape, plan);
    let kv_heads = (0..shape.n_layer).map(|il| usize::from(is_latent(il, shape)));
    plan.counts("attention.head_count_kv", kv_heads);
    latent.metadata(shape, plan);
    plan.count("ssm.conv_kernel", kimi::CONV_TAPS);
    plan.count("kda.head_dim", shape.head_dim);
    plan.number("kda.gate_lower_bound", -5.0);
    plan.count("leading_dense_block_count", N_DENSE);
    plan.count("expert_feed_forward_length", experts.n_ff);
    plan.count("expert_shared_count", N_SHARED);
    plan.count("expert_latent_length", latent_width(shape));
    plan.flag("expert_weights_norm", true);
    plan.number("expert_weights_scale", 1.0);
    plan.count("expert_gating_func", kimi::SIGMOID);
    plan.count("attn_res.block_size", shape.n_layer.div_ceil(MAX_KEPT));
    plan.number("activation.situ_beta", 4.0);
    plan.number("activation.situ_linear_beta", 25.0);
}

fn is_latent(il: usize, shape: &Shape) -> bool {
    il % 4 == 3 || il + 1 == shape.n_layer
}

/// Width that experts work in.
fn latent_width(shape: &Shape) -> usize {
    shape.n_embd / 2
}

/// A score vector of the whole model; scores are of unit variance.
fn score(plan: &mut ModelPlan, name: &str, n_embd: usize) {
    let deviation = 1.0 / (n_embd as f32).sqrt();
    plan.global(&format!("{name}_res_score"), Role::Precise, &[n_embd], deviation);
}

/// A score vector of the current layer.
fn layer_score(plan: &mut ModelPlan, name: &str, n_embd: usize) {
    plan.matrix(&format!("{name}_res_score"), Role::Precise, &[n_embd], 1.0);
}

fn latent_experts(shape: &Shape, experts: Experts, plan: &mut ModelPlan) {
    let (n_embd, width) = (shape.n_embd, latent_width(shape));
    plan.matrix("ffn_gate_inp", Role::Precise, &[n_embd, experts.count], 1.0);
    plan.bias("exp_probs_b", experts.count);
    plan.matrix("ffn_routed_down", Role::Matrix, &[n_embd, width], 1.0);
    gated_experts(plan, width, experts);
    plan.norm("ffn_routed_norm", width);
    plan.matrix("ffn_routed_up", Role::Matrix, &[width, n_embd], 1.0);
    ffn_matrices(plan, "_shexp", n_embd, N_SHARED * experts.n_ff);
}
