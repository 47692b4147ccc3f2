//! Synthetic models of Kimi Linear's architecture, and of bailingmoe3's: three layers of Kimi delta attention to each one
//! of latent attention, and experts.

use super::deepseek;
use crate::Shape;
use crate::decoders::plain::{count_predictions, head_gate, prediction_behind};
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    ATTENTION_GAIN, EMBEDDING, base_metadata, embedding, ffn, ffn_matrices, transformer_metadata,
};

pub(super) const CONV_TAPS: usize = 4;
/// Spread of the decay rates around -1.
const DECAY_SPREAD: f32 = 0.25;
/// `expert_gating_func` of a sigmoid router.
pub(super) const SIGMOID: usize = 2;
/// The first layers, without experts.
const N_DENSE: usize = 1;

/// kimi-linear: every fourth layer has latent attention, all but the first have experts.
pub(crate) fn kimi_linear(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = shape.experts.ok_or("it has experts, choose a size that has them")?;
    let shape = &Shape { tied: false, ..shape.clone() };
    let latent = Latent::of(shape);
    transformer_metadata(shape, plan);
    let kv_heads = (0..shape.n_layer).map(|il| usize::from(is_latent(il)));
    plan.counts("attention.head_count_kv", kv_heads);
    plan.count("attention.key_length", latent.rank + latent.pe);
    plan.count("attention.value_length", latent.rank);
    plan.count("attention.key_length_mla", shape.head_dim + latent.pe);
    plan.count("attention.value_length_mla", shape.head_dim);
    plan.count("attention.kv_lora_rank", latent.rank);
    plan.count("rope.dimension_count", latent.pe);
    plan.count("ssm.conv_kernel", CONV_TAPS);
    plan.count("kda.head_dim", shape.head_dim);
    plan.count("leading_dense_block_count", N_DENSE);
    plan.count("expert_feed_forward_length", experts.n_ff);
    plan.count("expert_shared_count", 1);
    plan.number("expert_weights_scale", 2.5);
    plan.count("expert_gating_func", SIGMOID);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        if is_latent(il) {
            latent_attention(shape, &latent, plan);
        } else {
            kda(shape, Gates::LowRank, plan);
        }
        let dense = Shape { experts: None, ..shape.clone() };
        if il < N_DENSE {
            ffn(&dense, plan);
        } else {
            ffn(shape, plan);
            plan.bias("exp_probs_b", experts.count);
            ffn_matrices(plan, "_shexp", shape.n_embd, experts.n_ff);
        }
    }
    Ok(())
}

/// bailingmoe3: latent attention is rotated and gated, and gates are made by one matrix each.
pub(crate) fn bailingmoe3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = shape.experts.ok_or("it has experts, choose a size that has them")?;
    let latent = deepseek::Latent::of(shape);
    base_metadata(shape, plan);
    let n_all = shape.n_layer + shape.drafts;
    let kv_heads = (0..n_all).map(|il| usize::from(is_latent(il) || il >= shape.n_layer));
    plan.counts("attention.head_count_kv", kv_heads);
    count_predictions(shape, plan, shape.drafts);
    latent.metadata(shape, plan);
    plan.count("ssm.conv_kernel", CONV_TAPS);
    plan.count("kda.head_dim", shape.head_dim);
    plan.number("kda.gate_lower_bound", -5.0);
    plan.count("leading_dense_block_count", N_DENSE);
    plan.count("expert_feed_forward_length", experts.n_ff);
    plan.count("expert_shared_count", 1);
    plan.flag("expert_weights_norm", true);
    plan.number("expert_weights_scale", 2.5);
    plan.count("expert_gating_func", SIGMOID);
    embedding(shape, plan, EMBEDDING);
    let dense = Shape { experts: None, ..shape.clone() };
    for il in 0..n_all {
        plan.layer(il);
        if is_latent(il) || il >= shape.n_layer {
            deepseek::latent_attention(shape, &latent, plan);
            head_gate(shape, plan, shape.n_head);
        } else {
            plan.norm("attn_norm", shape.n_embd);
            kda(shape, Gates::Full, plan);
        }
        if il < N_DENSE {
            ffn(&dense, plan);
        } else {
            ffn(shape, plan);
            plan.bias("exp_probs_b", experts.count);
            ffn_matrices(plan, "_shexp", shape.n_embd, experts.n_ff);
        }
        if il >= shape.n_layer {
            prediction_behind(shape, plan, "layer_output_norm");
        }
    }
    Ok(())
}

fn is_latent(il: usize) -> bool {
    il % 4 == 3
}

/// Widths of latent attention, in the published model's proportions to a head.
struct Latent {
    rank: usize,
    pe: usize,
}

impl Latent {
    fn of(shape: &Shape) -> Self {
        Self { rank: 4 * shape.head_dim, pe: shape.head_dim / 2 }
    }
}

fn latent_attention(shape: &Shape, latent: &Latent, plan: &mut ModelPlan) {
    let (n_embd, n_head, d) = (shape.n_embd, shape.n_head, shape.head_dim);
    plan.matrix("attn_q", Role::Matrix, &[n_embd, n_head * (d + latent.pe)], 1.0);
    plan.matrix("attn_kv_a_mqa", Role::Matrix, &[n_embd, latent.rank + latent.pe], 1.0);
    plan.norm("attn_kv_a_norm", latent.rank);
    plan.matrix("attn_k_b", Role::Matrix, &[d, latent.rank, n_head], 1.0);
    plan.matrix("attn_v_b", Role::Matrix, &[latent.rank, d, n_head], 1.0);
    plan.matrix("attn_output", Role::AttnOutput, &[n_head * d, n_embd], ATTENTION_GAIN);
}

/// Matrices that make a KDA mixer's gates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Gates {
    LowRank,
    /// As [`Self::LowRank`], with rates that are a vector.
    LowRankFlat,
    FullOutput,
    Full,
}

pub(super) fn kda(shape: &Shape, gates: Gates, plan: &mut ModelPlan) {
    let (n_embd, d, inner) = (shape.n_embd, shape.head_dim, shape.n_head * shape.head_dim);
    for (part, role) in [("q", Role::Matrix), ("k", Role::AttnK), ("v", Role::AttnV)] {
        plan.matrix(&format!("attn_{part}"), role, &[n_embd, inner], 1.0);
        let conv = format!("ssm_conv1d_{part}");
        plan.matrix(&conv, Role::Precise, &[CONV_TAPS, 1, inner], 1.0);
    }
    let full = |name: &str, plan: &mut ModelPlan| {
        plan.matrix(name, Role::Matrix, &[n_embd, inner], 1.0);
    };
    let low_rank = |of: &str, plan: &mut ModelPlan| {
        plan.matrix(&format!("ssm_{of}_a"), Role::Matrix, &[n_embd, d], 1.0);
        plan.matrix(&format!("ssm_{of}_b"), Role::Matrix, &[d, inner], 1.0);
    };
    match gates {
        Gates::LowRank | Gates::LowRankFlat => {
            low_rank("f", plan);
            low_rank("g", plan);
        }
        Gates::FullOutput => {
            low_rank("f", plan);
            full("ssm_g", plan);
        }
        Gates::Full => {
            full("ssm_f_a", plan);
            full("ssm_g_a", plan);
        }
    }
    plan.matrix("ssm_beta", Role::Matrix, &[n_embd, shape.n_head], 1.0);
    // The architectures differ in this too.
    let rates: &[usize] = match gates {
        Gates::LowRank | Gates::Full => &[1, shape.n_head],
        Gates::FullOutput | Gates::LowRankFlat => &[shape.n_head],
    };
    plan.precise("ssm_a", rates, Fill::Decay(DECAY_SPREAD));
    plan.bias("ssm_dt", inner);
    plan.norm("ssm_norm", d);
    plan.matrix("attn_output", Role::Matrix, &[inner, n_embd], 1.0);
}
