//! Synthetic models with DeepSeek's latent attention: its own, with experts beside shared ones, mistral4,
//! minicpm3 and plm.

use crate::Shape;
use crate::decoders::classic::two_matrices;
use crate::decoders::plain::{count_predictions, dense_layers, prediction};
use crate::file_type::Role;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    ATTENTION_GAIN, EMBEDDING, base_metadata, embedding, ffn, ffn_matrices, refuse_experts,
};

/// deepseek2 as V3 has it: low-rank queries, one dense layer before the experts, sigmoid router with
/// a bias, groups, YaRN.
pub(crate) fn deepseek2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    yarn(shape, plan);
    latent_model(shape, plan, |_, _, _| ())?;
    latent_blocks(shape, plan, |_, _| ())
}

/// Blocks of drafts behind such a model's layers; `more` adds to each one's attention what else it has.
pub(super) fn latent_blocks(
    shape: &Shape,
    plan: &mut ModelPlan,
    more: impl Fn(&Latent, &mut ModelPlan),
) -> Result<(), String> {
    count_predictions(shape, plan, shape.drafts);
    let latent = Latent::of(shape);
    let attention = |_: usize, plan: &mut ModelPlan| {
        latent_attention(shape, &latent, plan);
        more(&latent, plan);
    };
    for il in shape.n_layer..shape.n_layer + shape.drafts {
        latent_layer(shape, il, plan, &attention)?;
        prediction(shape, plan);
    }
    Ok(())
}

/// The rotation as DeepSeek scales it.
pub(super) fn yarn(shape: &Shape, plan: &mut ModelPlan) {
    plan.text("rope.scaling.type", "yarn");
    plan.number("rope.scaling.factor", 4.0);
    plan.count("rope.scaling.original_context_length", shape.context.div_ceil(4));
    plan.number("rope.scaling.yarn_log_multiplier", 0.0707);
}

/// A model with latent attention and experts behind dense layers; `more` adds to each layer's attention what else it has.
pub(super) fn latent_model(
    shape: &Shape,
    plan: &mut ModelPlan,
    more: impl Fn(usize, &Latent, &mut ModelPlan),
) -> Result<(), String> {
    let latent = Latent::of(shape);
    latent_layers(shape, &latent, plan, |il, plan| {
        latent_attention(shape, &latent, plan);
        more(il, &latent, plan);
    })
}

/// A model whose metadata have the widths `latent`, with experts behind dense layers and what `attention` adds of each layer
/// before them.
pub(super) fn latent_layers(
    shape: &Shape,
    latent: &Latent,
    plan: &mut ModelPlan,
    attention: impl Fn(usize, &mut ModelPlan),
) -> Result<(), String> {
    let experts = shape.experts.ok_or("it has experts, choose a size that has them")?;
    base_metadata(shape, plan);
    plan.count("attention.head_count_kv", 1);
    latent.metadata(shape, plan);
    let n_dense = dense_layers(shape);
    plan.count("leading_dense_block_count", n_dense);
    plan.count("expert_feed_forward_length", experts.n_ff);
    plan.count("expert_shared_count", 1);
    plan.number("expert_weights_scale", 2.5);
    plan.flag("expert_weights_norm", true);
    plan.count("expert_gating_func", SIGMOID);
    if experts.count.is_multiple_of(8) && 2 * experts.used <= experts.count {
        plan.count("expert_group_count", 4);
        plan.count("expert_group_used_count", 2);
    }
    embedding(shape, plan, EMBEDDING);
    (0..shape.n_layer).try_for_each(|il| latent_layer(shape, il, plan, &attention))
}

/// Layer `il` of such a model.
fn latent_layer(
    shape: &Shape,
    il: usize,
    plan: &mut ModelPlan,
    attention: &dyn Fn(usize, &mut ModelPlan),
) -> Result<(), String> {
    let experts = shape.experts.ok_or("it has experts, choose a size that has them")?;
    plan.layer(il);
    attention(il, plan);
    if il < dense_layers(shape) {
        ffn(&Shape { experts: None, ..shape.clone() }, plan);
        return Ok(());
    }
    ffn(shape, plan);
    plan.bias("exp_probs_b", experts.count);
    ffn_matrices(plan, "_shexp", shape.n_embd, experts.n_ff);
    Ok(())
}

/// mistral4: deepseek2 with queries that grow with the position.
pub(crate) fn mistral4(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    deepseek2(shape, plan)?;
    plan.number("attention.temperature_scale", 0.1);
    plan.count("attention.temperature_length", 24);
    Ok(())
}

/// `expert_gating_func` of a sigmoid router.
const SIGMOID: usize = 2;

/// Widths of latent attention, in DeepSeek-V3's proportions to a head.
#[derive(Clone, Copy)]
pub(super) struct Latent {
    pub(super) q_rank: usize,
    pub(super) kv_rank: usize,
    pub(super) n_pe: usize,
}

impl Latent {
    pub(super) fn of(shape: &Shape) -> Self {
        Self {
            q_rank: (12 * shape.head_dim).min(shape.n_embd * 3 / 4),
            kv_rank: 4 * shape.head_dim,
            n_pe: shape.head_dim / 2,
        }
    }

    pub(super) fn metadata(&self, shape: &Shape, plan: &mut ModelPlan) {
        plan.count("attention.q_lora_rank", self.q_rank);
        plan.count("attention.kv_lora_rank", self.kv_rank);
        plan.count("attention.key_length", self.kv_rank + self.n_pe);
        plan.count("attention.value_length", self.kv_rank);
        plan.count("attention.key_length_mla", shape.head_dim + self.n_pe);
        plan.count("attention.value_length_mla", shape.head_dim);
        plan.count("rope.dimension_count", self.n_pe);
    }
}

/// The tensors of latent attention and of the norm before it.
pub(super) fn latent_attention(shape: &Shape, latent: &Latent, plan: &mut ModelPlan) {
    let &Latent { q_rank, kv_rank, n_pe } = latent;
    let (n_embd, n_head, dim) = (shape.n_embd, shape.n_head, shape.head_dim);
    plan.norm("attn_norm", n_embd);
    plan.matrix("attn_q_a", Role::Matrix, &[n_embd, q_rank], 1.0);
    plan.norm("attn_q_a_norm", q_rank);
    plan.matrix("attn_q_b", Role::Matrix, &[q_rank, n_head * (dim + n_pe)], 1.0);
    plan.matrix("attn_kv_a_mqa", Role::Matrix, &[n_embd, kv_rank + n_pe], 1.0);
    plan.norm("attn_kv_a_norm", kv_rank);
    plan.matrix("attn_k_b", Role::Matrix, &[dim, kv_rank, n_head], 1.0);
    plan.matrix("attn_v_b", Role::Matrix, &[kv_rank, dim, n_head], 1.0);
    plan.matrix("attn_output", Role::AttnOutput, &[n_head * dim, n_embd], ATTENTION_GAIN);
}

/// minicpm3: keys and values of heads from one matrix, dense FFNs, longrope.
pub(crate) fn minicpm3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    let Latent { q_rank, kv_rank, n_pe } = Latent::of(shape);
    let (n_embd, n_head, dim) = (shape.n_embd, shape.n_head, shape.head_dim);
    base_metadata(shape, plan);
    plan.count("attention.head_count_kv", n_head);
    plan.count("attention.q_lora_rank", q_rank);
    plan.count("attention.kv_lora_rank", kv_rank);
    plan.count("attention.key_length", dim + n_pe);
    plan.count("attention.value_length", dim);
    plan.count("rope.dimension_count", n_pe);
    plan.count("rope.scaling.original_context_length", shape.context.div_ceil(2048));
    plan.global_norm("rope_factors_long", n_pe / 2);
    plan.global_norm("rope_factors_short", n_pe / 2);
    // The architecture multiplies embedded rows by 12.
    embedding(shape, plan, EMBEDDING / 12.0);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", n_embd);
        plan.matrix("attn_q_a", Role::Matrix, &[n_embd, q_rank], 1.0);
        plan.norm("attn_q_a_norm", q_rank);
        plan.matrix("attn_q_b", Role::Matrix, &[q_rank, n_head * (dim + n_pe)], 1.0);
        plan.matrix("attn_kv_a_mqa", Role::Matrix, &[n_embd, kv_rank + n_pe], 1.0);
        plan.norm("attn_kv_a_norm", kv_rank);
        plan.matrix("attn_kv_b", Role::Matrix, &[kv_rank, n_head * 2 * dim], 1.0);
        plan.matrix("attn_output", Role::AttnOutput, &[n_head * dim, n_embd], ATTENTION_GAIN);
        ffn(shape, plan);
    }
    Ok(())
}

/// plm: queries of full rank, keys and values of heads from one matrix, squared ReLUs.
pub(crate) fn plm(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    if !shape.tied {
        return Err("its output matrix is the embedding, choose a size where it is".to_owned());
    }
    let Latent { kv_rank, n_pe, .. } = Latent::of(shape);
    let (n_embd, n_head, dim) = (shape.n_embd, shape.n_head, shape.head_dim);
    base_metadata(shape, plan);
    plan.count("attention.head_count_kv", n_head);
    plan.count("attention.kv_lora_rank", kv_rank);
    plan.count("attention.key_length", dim + n_pe);
    plan.count("attention.value_length", dim);
    plan.count("rope.dimension_count", n_pe);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", n_embd);
        plan.matrix("attn_q", Role::Matrix, &[n_embd, n_head * (dim + n_pe)], 1.0);
        plan.matrix("attn_kv_a_mqa", Role::Matrix, &[n_embd, kv_rank + n_pe], 1.0);
        plan.norm("attn_kv_a_norm", kv_rank);
        plan.matrix("attn_kv_b", Role::Matrix, &[kv_rank, n_head * 2 * dim], 1.0);
        plan.matrix("attn_output", Role::AttnOutput, &[n_head * dim, n_embd], ATTENTION_GAIN);
        plan.norm("ffn_norm", n_embd);
        two_matrices(shape, plan, false);
    }
    Ok(())
}
