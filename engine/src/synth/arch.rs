//! The architectures: which metadata and tensors each has. One function an architecture.

use super::file_type::Role;
use super::plan::Plan;
use super::{
    Experts, Shape, Spec, SynthError, deepseek, delta, hybrids, kimi, kimi_k3, mamba2, rwkv, vocab,
};

/// Largest size that a shape may name: dimensions are stored as u32, and nothing real comes near.
const MAX_DIMENSION: usize = 1 << 24;
/// Standard deviation of embeddings after the architecture's own scaling: about what a layer adds, so
/// that a token still tells in the last layer of a deep model.
pub(super) const EMBEDDING: f32 = 1.0;
/// Gain of the attention's way back. Attention with random weights is near the mean over all positions,
/// the same for each of them: at full gain it drowns the rest in deep models, and greedy text is one
/// token over and over.
pub(super) const ATTENTION_GAIN: f32 = 0.5;
/// Gain of the output matrix: logits of this standard deviation.
const OUTPUT_GAIN: f32 = 3.0;
pub(super) const RMS_EPSILON: f32 = 1e-5;

/// An architecture that can be made.
#[derive(Clone, Copy, Debug)]
pub struct Arch {
    name: &'static str,
    build: fn(&Shape, &mut Plan) -> Result<(), String>,
}

impl PartialEq for Arch {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Every architecture that can be made.
pub static ARCHES: &[Arch] = &[
    Arch { name: "llama", build: llama },
    Arch { name: "qwen2", build: qwen2 },
    Arch { name: "qwen3", build: qwen3 },
    Arch { name: "qwen3moe", build: qwen3moe },
    Arch { name: "granite", build: granite },
    Arch { name: "mamba", build: hybrids::mamba },
    Arch { name: "rwkv7", build: rwkv::rwkv7 },
    Arch { name: "jamba", build: hybrids::jamba },
    Arch { name: "lfm2", build: hybrids::lfm2 },
    Arch { name: "lfm2moe", build: hybrids::lfm2moe },
    Arch { name: "kimi-linear", build: kimi::kimi_linear },
    Arch { name: "kimi-k3", build: kimi_k3::kimi_k3 },
    Arch { name: "qwen3next", build: delta::qwen3next },
    Arch { name: "qwen35", build: delta::qwen35 },
    Arch { name: "qwen35moe", build: delta::qwen35moe },
    Arch { name: "mamba2", build: mamba2::mamba2 },
    Arch { name: "granitehybrid", build: mamba2::granitehybrid },
    Arch { name: "nemotron_h", build: mamba2::nemotron_h },
    Arch { name: "nemotron_h_moe", build: mamba2::nemotron_h_moe },
    Arch { name: "falcon-h1", build: mamba2::falcon_h1 },
    Arch { name: "deepseek2", build: deepseek::deepseek2 },
];

impl Arch {
    /// The architecture of this name.
    ///
    /// # Errors
    /// There is none; the message lists those there are.
    pub fn named(name: &str) -> Result<Self, SynthError> {
        ARCHES.iter().find(|arch| arch.name == name).copied().ok_or_else(|| SynthError::Unknown {
            what: "architecture",
            name: name.to_owned(),
            choices: ARCHES.iter().map(|arch| arch.name).collect(),
        })
    }

    /// Its `general.architecture`.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// Checks the sizes and lists metadata and tensors.
pub(super) fn plan(spec: &Spec) -> Result<Plan, SynthError> {
    let fail = |problem| SynthError::Shape { arch: spec.arch.name, problem };
    let mut plan = Plan::new(spec.arch.name, spec.quant, &spec.shape);
    check(&spec.shape).map_err(fail)?;
    (spec.arch.build)(&spec.shape, &mut plan).map_err(fail)?;
    Ok(plan)
}

fn check(shape: &Shape) -> Result<(), String> {
    let experts = shape.experts.map_or([1, 1, 1], |e| [e.count, e.used, e.n_ff]);
    let sizes =
        [shape.n_layer, shape.n_embd, shape.n_ff, shape.n_head, shape.n_head_kv, shape.head_dim];
    for size in sizes.into_iter().chain(experts).chain([shape.vocab, shape.context]) {
        if !(1..=MAX_DIMENSION).contains(&size) {
            return Err(format!("a size of {size}, must be 1 to {MAX_DIMENSION}"));
        }
    }
    if !shape.n_head.is_multiple_of(shape.n_head_kv) {
        return Err(format!(
            "{} heads do not share {} KV heads evenly",
            shape.n_head, shape.n_head_kv
        ));
    }
    if !shape.head_dim.is_multiple_of(2) {
        return Err(format!("heads of {}, rotary positions need an even width", shape.head_dim));
    }
    if experts[1] > experts[0] {
        return Err(format!("{} of {} experts used", experts[1], experts[0]));
    }
    if !vocab::SIZES.contains(&shape.vocab) {
        let (min, max) = vocab::SIZES.into_inner();
        return Err(format!("{} tokens, must be {min} to {max}", shape.vocab));
    }
    Ok(())
}

/// llama, dense or with experts as in Mixtral.
fn llama(shape: &Shape, plan: &mut Plan) -> Result<(), String> {
    // It has no key for the experts' width: the FFN's stands for both.
    let n_ff = shape.experts.map_or(shape.n_ff, |experts| experts.n_ff);
    let shape = &Shape { n_ff, ..shape.clone() };
    transformer_metadata(shape, plan);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        ffn(shape, plan);
    }
    Ok(())
}

/// qwen2: llama's block with biases on queries, keys and values.
fn qwen2(shape: &Shape, plan: &mut Plan) -> Result<(), String> {
    refuse_experts(shape)?;
    if shape.n_head * shape.head_dim != shape.n_embd {
        return Err("the heads together must be as wide as the residual stream".to_owned());
    }
    transformer_metadata(shape, plan);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        plan.bias("attn_q", shape.n_head * shape.head_dim);
        plan.bias("attn_k", shape.n_head_kv * shape.head_dim);
        plan.bias("attn_v", shape.n_head_kv * shape.head_dim);
        ffn(shape, plan);
    }
    Ok(())
}

/// qwen3: llama's block with norms on each head's query and key.
fn qwen3(shape: &Shape, plan: &mut Plan) -> Result<(), String> {
    refuse_experts(shape)?;
    qwen3_layers(shape, plan);
    Ok(())
}

/// qwen3moe: qwen3's attention, experts.
fn qwen3moe(shape: &Shape, plan: &mut Plan) -> Result<(), String> {
    let experts = shape.experts.ok_or("it has experts, choose a size that has them")?;
    plan.count("expert_feed_forward_length", experts.n_ff);
    qwen3_layers(shape, plan);
    Ok(())
}

fn qwen3_layers(shape: &Shape, plan: &mut Plan) {
    transformer_metadata(shape, plan);
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        plan.norm("attn_q_norm", shape.head_dim);
        plan.norm("attn_k_norm", shape.head_dim);
        ffn(shape, plan);
    }
}

/// granite: llama's block with four scales.
fn granite(shape: &Shape, plan: &mut Plan) -> Result<(), String> {
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    let embedding_scale = granite_scales(shape, plan);
    embedding(shape, plan, EMBEDDING / embedding_scale);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        ffn(shape, plan);
    }
    Ok(())
}

/// Adds granite's four scales; returns the embedding's.
pub(super) fn granite_scales(shape: &Shape, plan: &mut Plan) -> f32 {
    const EMBEDDING_SCALE: f32 = 12.0;
    plan.number("embedding_scale", EMBEDDING_SCALE);
    plan.number("residual_scale", 0.5);
    plan.number("attention.scale", 1.0 / (shape.head_dim as f32).sqrt());
    plan.number("logit_scale", 2.0);
    EMBEDDING_SCALE
}

pub(super) fn refuse_experts(shape: &Shape) -> Result<(), String> {
    match shape.experts {
        Some(_) => Err("it has no experts, choose a size without".to_owned()),
        None => Ok(()),
    }
}

pub(super) fn transformer_metadata(shape: &Shape, plan: &mut Plan) {
    base_metadata(shape, plan);
    plan.count("attention.head_count_kv", shape.n_head_kv);
    plan.count("attention.key_length", shape.head_dim);
    plan.count("attention.value_length", shape.head_dim);
    plan.count("rope.dimension_count", shape.head_dim);
}

/// What all metadata have, whatever the attention is.
pub(super) fn base_metadata(shape: &Shape, plan: &mut Plan) {
    plan.count("context_length", shape.context);
    plan.count("embedding_length", shape.n_embd);
    plan.count("block_count", shape.n_layer);
    plan.count("feed_forward_length", shape.n_ff);
    plan.count("attention.head_count", shape.n_head);
    plan.number("rope.freq_base", 10000.0);
    plan.number("attention.layer_norm_rms_epsilon", RMS_EPSILON);
    plan.count("vocab_size", shape.vocab);
    if let Some(experts) = shape.experts {
        plan.count("expert_count", experts.count);
        plan.count("expert_used_count", experts.used);
    }
}

/// What the first and the last stage have besides layers.
pub(super) fn embedding(shape: &Shape, plan: &mut Plan, deviation: f32) {
    embedding_matrices(shape, plan, deviation);
    plan.global_norm("output_norm", shape.n_embd);
}

/// Embedding and output, one matrix or two.
pub(super) fn embedding_matrices(shape: &Shape, plan: &mut Plan, deviation: f32) {
    let ne = [shape.n_embd, shape.vocab];
    if shape.tied {
        plan.global("token_embd", Role::Output, &ne, deviation);
    } else {
        plan.global("token_embd", Role::Embedding, &ne, deviation);
        plan.global("output", Role::Output, &ne, OUTPUT_GAIN / (shape.n_embd as f32).sqrt());
    }
}

pub(super) fn attention(shape: &Shape, plan: &mut Plan) {
    let (q, kv) = (shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim);
    plan.norm("attn_norm", shape.n_embd);
    plan.matrix("attn_q", Role::Matrix, &[shape.n_embd, q], 1.0);
    plan.matrix("attn_k", Role::AttnK, &[shape.n_embd, kv], 1.0);
    plan.matrix("attn_v", Role::AttnV, &[shape.n_embd, kv], 1.0);
    plan.matrix("attn_output", Role::AttnOutput, &[q, shape.n_embd], ATTENTION_GAIN);
}

pub(super) fn ffn(shape: &Shape, plan: &mut Plan) {
    plan.norm("ffn_norm", shape.n_embd);
    dense_or_experts(shape, plan);
}

/// An FFN without its norm.
pub(super) fn dense_or_experts(shape: &Shape, plan: &mut Plan) {
    let Some(experts) = shape.experts else {
        return ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    };
    plan.matrix("ffn_gate_inp", Role::Precise, &[shape.n_embd, experts.count], 1.0);
    gated_experts(plan, shape.n_embd, experts);
}

/// Experts with gates that work in rows of `width`.
pub(super) fn gated_experts(plan: &mut Plan, width: usize, experts: Experts) {
    let (up, down) = ([width, experts.n_ff, experts.count], [experts.n_ff, width, experts.count]);
    plan.matrix("ffn_gate_exps", Role::Expert, &up, 1.0);
    plan.matrix("ffn_up_exps", Role::Expert, &up, 1.0);
    plan.matrix("ffn_down_exps", Role::FfnDown { expert: true }, &down, 1.0);
}

/// A gated FFN; `suffix` tells a shared expert from the layer's own.
pub(super) fn ffn_matrices(plan: &mut Plan, suffix: &str, n_embd: usize, n_ff: usize) {
    let name = |part: &str| format!("ffn_{part}{suffix}");
    plan.matrix(&name("gate"), Role::Matrix, &[n_embd, n_ff], 1.0);
    plan.matrix(&name("up"), Role::Matrix, &[n_embd, n_ff], 1.0);
    plan.matrix(&name("down"), Role::FfnDown { expert: false }, &[n_ff, n_embd], 1.0);
}
