//! Synthetic models with Mamba-2 mixers: alone, in turn with attention, or beside it.

use crate::decoders::plain::{count_predictions, fused_ffn, fused_projections, prediction};
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    EMBEDDING, RMS_EPSILON, attention, embedding, ffn, ffn_matrices, granite_scales,
    refuse_experts, transformer_metadata,
};
use crate::{Experts, Shape, Ssm};

/// Time steps before their softplus.
const TIME_STEP: Fill = Fill::Step(0.5);
/// Logarithmic decays of the heads.
const DECAY: Fill = Fill::Decay(0.25);
/// Taps of a convolution.
const TAP: Fill = Fill::Normal(0.5);
const NEAR_ONE: Fill = Fill::AroundOne(0.1);

/// mamba2: nothing but mixers.
pub(crate) fn mamba2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    plan.count("context_length", shape.context);
    plan.count("embedding_length", shape.n_embd);
    plan.count("block_count", shape.n_layer);
    plan.count("feed_forward_length", 0);
    plan.count("attention.head_count", 0);
    plan.number("attention.layer_norm_rms_epsilon", RMS_EPSILON);
    plan.count("vocab_size", shape.vocab);
    let mixer = Mixer::plan(shape, plan)?;
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        mixer.tensors(plan);
    }
    Ok(())
}

/// granitehybrid: granite with a mixer for the attention in three of four layers; experts have a
/// shared one beside them.
pub(crate) fn granitehybrid(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    // The FFN's key stands for experts as well.
    let n_ff = shape.experts.map_or(shape.n_ff, |experts| experts.n_ff);
    transformer_metadata(&Shape { n_ff, ..shape.clone() }, plan);
    let attends = |il: usize| il % 4 == 2;
    let kv = |il| if attends(il) { shape.n_head_kv } else { 0 };
    plan.counts("attention.head_count_kv", (0..shape.n_layer).map(kv));
    plan.flag("rope.scaling.finetuned", false);
    if shape.experts.is_some() {
        plan.count("expert_shared_feed_forward_length", shape.n_ff);
    }
    let embedding_scale = granite_scales(shape, plan);
    let mixer = Mixer::plan(shape, plan)?;
    embedding(shape, plan, EMBEDDING / embedding_scale);
    for il in 0..shape.n_layer {
        plan.layer(il);
        if attends(il) {
            attention(shape, plan);
        } else {
            plan.norm("attn_norm", shape.n_embd);
            mixer.tensors(plan);
        }
        ffn(shape, plan);
        if shape.experts.is_some() {
            ffn_matrices(plan, "_shexp", shape.n_embd, shape.n_ff);
        }
    }
    Ok(())
}

/// nemotron_h: single blocks in turn: mixer, FFN, mixer, attention; FFNs are squared ReLUs.
pub(crate) fn nemotron_h(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    nemotron_layers(shape, plan)
}

/// nemotron_h_moe: the same with experts and a shared one, the experts half as wide outside.
pub(crate) fn nemotron_h_moe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let experts = shape.experts.ok_or("it has experts, choose a size that has them")?;
    plan.count("expert_feed_forward_length", experts.n_ff);
    plan.count("expert_shared_feed_forward_length", shape.n_ff);
    plan.count("expert_shared_count", 1);
    plan.flag("expert_weights_norm", true);
    plan.number("expert_weights_scale", 2.0);
    plan.count("moe_latent_size", shape.n_embd / 2);
    nemotron_layers(shape, plan)
}

fn nemotron_layers(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let drafts = if shape.experts.is_some() { shape.drafts } else { 0 };
    let (n_layer, n_all) = (shape.n_layer, shape.n_layer + drafts);
    let is_ffn = |il: usize| il < n_layer && il % 4 == 1;
    let attends = |il: usize| il >= n_layer || il % 4 == 3;
    transformer_metadata(shape, plan);
    let only = |n, yes| if yes { n } else { 0 };
    let kv_heads = (0..n_all).map(|il| only(shape.n_head_kv, attends(il)));
    plan.counts("attention.head_count_kv", kv_heads);
    plan.counts("feed_forward_length", (0..n_all).map(|il| only(shape.n_ff, is_ffn(il))));
    plan.number("attention.layer_norm_epsilon", RMS_EPSILON);
    count_predictions(shape, plan, drafts);
    let mixer = Mixer::plan(shape, plan)?;
    embedding(shape, plan, EMBEDDING);
    for il in 0..n_all {
        plan.layer(il);
        if attends(il) {
            attention(shape, plan);
            if let Some(experts) = shape.experts.filter(|_| il >= n_layer) {
                plan.norm("post_attention_norm", shape.n_embd);
                nemotron_experts(shape, experts, plan);
                prediction(shape, plan);
            }
            continue;
        }
        plan.norm("attn_norm", shape.n_embd);
        match shape.experts {
            _ if !is_ffn(il) => mixer.tensors(plan),
            None => squared_relus(plan, "", shape.n_embd, shape.n_ff),
            Some(experts) => nemotron_experts(shape, experts, plan),
        }
    }
    Ok(())
}

fn nemotron_experts(shape: &Shape, experts: Experts, plan: &mut ModelPlan) {
    let (n_embd, latent) = (shape.n_embd, shape.n_embd / 2);
    plan.matrix("ffn_gate_inp", Role::Precise, &[n_embd, experts.count], 1.0);
    plan.bias("exp_probs_b", experts.count);
    plan.matrix("ffn_latent_down", Role::Matrix, &[n_embd, latent], 1.0);
    plan.matrix("ffn_latent_up", Role::Matrix, &[latent, n_embd], 1.0);
    let up = [latent, experts.n_ff, experts.count];
    let down = [experts.n_ff, latent, experts.count];
    plan.matrix("ffn_up_exps", Role::Expert, &up, 1.0);
    plan.matrix("ffn_down_exps", Role::FfnDown { expert: true }, &down, 1.0);
    squared_relus(plan, "_shexp", n_embd, shape.n_ff);
}

/// An FFN without a gate.
fn squared_relus(plan: &mut ModelPlan, suffix: &str, n_embd: usize, n_ff: usize) {
    plan.matrix(&format!("ffn_up{suffix}"), Role::Matrix, &[n_embd, n_ff], 1.0);
    let down = Role::FfnDown { expert: false };
    plan.matrix(&format!("ffn_down{suffix}"), down, &[n_ff, n_embd], 1.0);
}

/// falcon-h1: attention and a mixer on the same rows in every layer.
pub(crate) fn falcon_h1(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    let mixer = Mixer::plan(shape, plan)?;
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        mixer.tensors(plan);
        plan.precise("ffn_norm", &[shape.n_embd], NEAR_ONE);
        ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    }
    Ok(())
}

/// plamo2: attention in every second layer, beginning with the first, mixers in the others; norms before and behind
/// each block. Heads have norms of their own, and mixers make B, C and time steps of x.
pub(crate) fn plamo2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    let of_layer = |n: usize| (0..shape.n_layer).map(move |il| if il % 2 == 0 { n } else { 0 });
    plan.counts("attention.head_count", of_layer(shape.n_head));
    plan.counts("attention.head_count_kv", of_layer(shape.n_head_kv));
    let mixer = Mixer::plan(shape, plan)?;
    plan.count("ssm.group_count", 0);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        match il % 2 {
            0 => {
                fused_projections(shape, plan);
                plan.matrix_norm("attn_q_norm", &[shape.head_dim, shape.n_head]);
                plan.matrix_norm("attn_k_norm", &[shape.head_dim, shape.n_head_kv]);
            }
            _ => mixer.tensors_of_x(plan),
        }
        plan.precise("post_attention_norm", &[shape.n_embd], NEAR_ONE);
        plan.norm("ffn_norm", shape.n_embd);
        fused_ffn(shape, plan);
        plan.precise("post_ffw_norm", &[shape.n_embd], NEAR_ONE);
    }
    Ok(())
}

/// Sizes of the mixers of a model.
struct Mixer {
    n_embd: usize,
    n_inner: usize,
    n_head: usize,
    ssm: Ssm,
}

impl Mixer {
    /// Checks the sizes and adds their keys; mixers are twice as wide as the residual stream.
    fn plan(shape: &Shape, plan: &mut ModelPlan) -> Result<Self, String> {
        let (n_inner, ssm) = (2 * shape.n_embd, shape.ssm);
        if ssm.head_dim == 0 || !n_inner.is_multiple_of(ssm.head_dim) {
            return Err(format!("{n_inner} channels do not make heads of {}", ssm.head_dim));
        }
        let n_head = n_inner / ssm.head_dim;
        if ssm.n_group == 0 || !n_head.is_multiple_of(ssm.n_group) {
            return Err(format!("{n_head} heads do not make {} groups", ssm.n_group));
        }
        plan.count("ssm.conv_kernel", Ssm::CONV_TAPS);
        plan.count("ssm.inner_size", n_inner);
        plan.count("ssm.state_size", ssm.n_state);
        plan.count("ssm.time_step_rank", n_head);
        plan.count("ssm.group_count", ssm.n_group);
        Ok(Self { n_embd: shape.n_embd, n_inner, n_head, ssm })
    }

    /// The tensors of the current layer.
    fn tensors(&self, plan: &mut ModelPlan) {
        let channels = self.n_inner + 2 * self.ssm.n_group * self.ssm.n_state;
        let n_in = self.n_inner + channels + self.n_head;
        plan.matrix("ssm_in", Role::Matrix, &[self.n_embd, n_in], 1.0);
        plan.precise("ssm_conv1d.weight", &[Ssm::CONV_TAPS, channels], TAP);
        plan.bias("ssm_conv1d", channels);
        plan.precise("ssm_dt.bias", &[self.n_head], TIME_STEP);
        plan.precise("ssm_a", &[1, self.n_head], DECAY);
        plan.precise("ssm_d", &[1, self.n_head], NEAR_ONE);
        let groups = [self.n_inner / self.ssm.n_group, self.ssm.n_group];
        plan.precise("ssm_norm.weight", &groups, NEAR_ONE);
        plan.matrix("ssm_out", Role::Matrix, &[self.n_inner, self.n_embd], 1.0);
    }

    /// The tensors of the current layer where B, C and time steps are made of x.
    fn tensors_of_x(&self, plan: &mut ModelPlan) {
        let (n_inner, n_state) = (self.n_inner, self.ssm.n_state);
        let n_steps = (self.n_embd / 16).max(64);
        plan.matrix("ssm_in", Role::Matrix, &[self.n_embd, 2 * n_inner], 1.0);
        plan.precise("ssm_conv1d.weight", &[Ssm::CONV_TAPS, n_inner], TAP);
        plan.matrix("ssm_x", Role::Matrix, &[n_inner, 2 * n_state + n_steps], 1.0);
        for (name, width) in [("b", n_state), ("c", n_state), ("dt", n_steps)] {
            plan.precise(&format!("ssm_{name}_norm"), &[width], NEAR_ONE);
        }
        plan.matrix("ssm_dt", Role::Matrix, &[n_steps, self.n_head], 1.0);
        plan.precise("ssm_dt.bias", &[self.n_head], TIME_STEP);
        plan.precise("ssm_a", &[self.n_head], DECAY);
        plan.precise("ssm_d", &[self.n_head], NEAR_ONE);
        plan.matrix("ssm_out", Role::Matrix, &[n_inner, self.n_embd], 1.0);
    }
}
