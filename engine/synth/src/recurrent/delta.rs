//! Synthetic models with delta-rule layers: which metadata and tensors each architecture has.

use crate::Shape;
use crate::decoders::plain::{count_predictions, prediction};
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    ATTENTION_GAIN, EMBEDDING, dense_or_experts, embedding, ffn_matrices, refuse_experts,
    transformer_metadata,
};

const CONV_TAPS: usize = 4;
/// Spread of the decay rates around -1.
const DECAY_SPREAD: f32 = 0.25;
/// Every this many layers one has full attention.
const INTERVAL: usize = 4;

/// qwen35: gated delta nets, one gated attention in four layers, dense FFNs.
pub(crate) fn qwen35(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    sections(shape, plan);
    qwen_layers(shape, plan, false)
}

/// qwen35moe: qwen35 with experts.
pub(crate) fn qwen35moe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    sections(shape, plan);
    qwen_experts(shape, plan)?;
    qwen_layers(shape, plan, false)
}

/// qwen3next: as qwen35moe with other orders of heads and rows.
pub(crate) fn qwen3next(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    qwen_experts(shape, plan)?;
    qwen_layers(shape, plan, true)
}

pub(crate) fn qwen_experts(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = shape.experts.ok_or("it has experts, choose a size that has them")?;
    plan.count("expert_feed_forward_length", experts.n_ff);
    plan.count("expert_shared_feed_forward_length", experts.n_ff);
    Ok(())
}

/// Rotated values of a head.
fn n_rot(shape: &Shape) -> usize {
    (shape.head_dim / 4).next_multiple_of(2)
}

/// All rotated pairs take the position of the text.
pub(crate) fn sections(shape: &Shape, plan: &mut ModelPlan) {
    let pairs = n_rot(shape) / 2;
    let third = pairs.div_ceil(3);
    plan.counts("rope.dimension_sections", [third, third, third, 0]);
}

/// Whether a layer has full attention.
pub(crate) fn is_full(il: usize) -> bool {
    (il + 1).is_multiple_of(INTERVAL)
}

/// Metadata of a model with gated delta nets, and full attention in one of four layers.
pub(crate) fn net_metadata(shape: &Shape, net: &NetShape, plan: &mut ModelPlan) {
    transformer_metadata(shape, plan);
    plan.count("rope.dimension_count", n_rot(shape));
    plan.count("full_attention_interval", INTERVAL);
    plan.count("ssm.conv_kernel", CONV_TAPS);
    plan.count("ssm.inner_size", net.n_head * net.d);
    plan.count("ssm.state_size", net.d);
    plan.count("ssm.time_step_rank", net.n_head);
    plan.count("ssm.group_count", net.n_key_head);
}

fn qwen_layers(shape: &Shape, plan: &mut ModelPlan, by_key_head: bool) -> Result<(), String> {
    let net = NetShape::of(shape);
    net_metadata(shape, &net, plan);
    count_predictions(shape, plan, shape.drafts);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        if is_full(il) {
            gated_attention(shape, plan);
        } else {
            delta_net(shape, &net, plan, by_key_head);
        }
        plan.norm("post_attention_norm", shape.n_embd);
        shared_and_routed(shape, plan);
    }
    for il in shape.n_layer..shape.n_layer + shape.drafts {
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        gated_attention(shape, plan);
        plan.norm("post_attention_norm", shape.n_embd);
        shared_and_routed(shape, plan);
        prediction(shape, plan);
    }
    Ok(())
}

/// An FFN, or experts beside a shared one that has a gate.
pub(crate) fn shared_and_routed(shape: &Shape, plan: &mut ModelPlan) {
    dense_or_experts(shape, plan);
    if let Some(experts) = shape.experts {
        ffn_matrices(plan, "_shexp", shape.n_embd, experts.n_ff);
        let deviation = 1.0 / (shape.n_embd as f32).sqrt();
        let gate = Fill::Normal(deviation);
        plan.precise("ffn_gate_inp_shexp.weight", &[shape.n_embd], gate);
    }
}

/// Sizes of a gated delta net.
pub(crate) struct NetShape {
    n_head: usize,
    n_key_head: usize,
    d: usize,
}

impl NetShape {
    /// Twice as many value heads as key heads, all half as wide as those of attention.
    pub(crate) fn of(shape: &Shape) -> Self {
        Self { n_head: 2 * shape.n_head, n_key_head: shape.n_head, d: shape.head_dim / 2 }
    }
}

pub(crate) fn gated_attention(shape: &Shape, plan: &mut ModelPlan) {
    let (q, kv) = (shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim);
    plan.matrix("attn_q", Role::Matrix, &[shape.n_embd, 2 * q], 1.0);
    plan.matrix("attn_k", Role::AttnK, &[shape.n_embd, kv], 1.0);
    plan.matrix("attn_v", Role::AttnV, &[shape.n_embd, kv], 1.0);
    plan.norm("attn_q_norm", shape.head_dim);
    plan.norm("attn_k_norm", shape.head_dim);
    plan.matrix("attn_output", Role::AttnOutput, &[q, shape.n_embd], ATTENTION_GAIN);
}

pub(crate) fn delta_net(shape: &Shape, net: &NetShape, plan: &mut ModelPlan, by_key_head: bool) {
    let (keys, values) = (net.n_key_head * net.d, net.n_head * net.d);
    let all = 2 * keys + values;
    plan.matrix("attn_qkv", Role::Matrix, &[shape.n_embd, all], 1.0);
    plan.matrix("attn_gate", Role::Matrix, &[shape.n_embd, values], 1.0);
    if by_key_head {
        plan.matrix("ssm_ba", Role::Matrix, &[shape.n_embd, 2 * net.n_head], 1.0);
    } else {
        plan.matrix("ssm_beta", Role::Matrix, &[shape.n_embd, net.n_head], 1.0);
        plan.matrix("ssm_alpha", Role::Matrix, &[shape.n_embd, net.n_head], 1.0);
    }
    plan.matrix("ssm_conv1d", Role::Precise, &[CONV_TAPS, all], 1.0);
    plan.bias("ssm_dt", net.n_head);
    plan.precise("ssm_a", &[net.n_head], Fill::Decay(DECAY_SPREAD));
    plan.norm("ssm_norm", net.d);
    plan.matrix("ssm_out", Role::Matrix, &[values, shape.n_embd], 1.0);
}
