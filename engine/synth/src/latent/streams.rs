//! Synthetic models whose tokens have several streams, which weigh themselves: hy_v4, glm5-next and deepseek4.

use super::compressed::{attention, metadata};
use super::deepseek::{Latent, latent_attention, latent_model};
use super::indexed::{has_index_of_every_fourth, index, index_heads, index_metadata};
use super::kimi::{CONV_TAPS, Gates, kda};
use crate::Shape;
use crate::decoders::mixtures::{SIGMOID, deepseek_keys, dense_then_experts, layers};
use crate::decoders::plain::{count_predictions, dense_layers, experts, prediction, sinks, untied};
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{EMBEDDING, base_metadata, embedding, ffn, ffn_matrices};

/// Streams, as all models have.
const STREAMS: usize = 4;
/// Spread of what is added before a stream's weight is bent.
const BASE: f32 = 0.5;
/// Bound of an expert's factors.
const BOUND: f32 = 2.0;
/// The same of shared experts and dense FFNs, where they have one of their own.
const SHARED_BOUND: f32 = 1.5;
/// Positions of a pool.
const POOL: usize = 4;
/// Rounds that make the matrix doubly stochastic by which streams mix.
const ROUNDS: usize = 20;
/// `expert_gating_func` of a router that takes the root of a softplus.
const SQRT_SOFTPLUS: usize = 4;
/// Most layers whose experts a table chooses.
const MOST_BY_TOKEN: usize = 3;

/// hy_v4: streams that do not mix, gated latent attention with sinks, an index in some layers.
pub(crate) fn hy_v4(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    streams_metadata(plan);
    plan.number("hyper_connection.magnitude", 2.0);
    plan.numbers("swiglu_clamp_exp", vec![BOUND; shape.n_layer]);
    index_metadata(shape, plan);
    let types = (0..shape.n_layer).map(|il| usize::from(has_index_of_every_fourth(il)));
    plan.counts("attention.indexer.types", types);
    let wide = shape.n_head * shape.head_dim;
    latent_model(shape, plan, |il, latent, plan| {
        sinks(shape, plan);
        plan.matrix("attn_gate", Role::Matrix, &[shape.n_embd, wide], 1.0);
        if has_index_of_every_fourth(il) {
            index(shape, latent, plan);
        }
        for block in ["hc_attn", "hc_ffn"] {
            connection(shape, plan, block, 2 * STREAMS, 2);
        }
    })?;
    head_connection(shape, plan);
    Ok(())
}

/// glm5-next: streams that mix, delta attention and latent attention by turns. The first of every two layers with
/// latent attention has an index of pools, and the second attends to the same pools. At the end stands a block of
/// multi-token prediction, which is not run.
pub(crate) fn glm5_next(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    let experts = experts(shape)?;
    let latent = Latent { n_pe: 0, ..Latent::of(shape) };
    let n_dense = dense_layers(shape);
    pooled_metadata(shape, &latent, plan);
    plan.count("leading_dense_block_count", n_dense);
    plan.count("expert_feed_forward_length", experts.n_ff);
    let layer = |il: usize, plan: &mut ModelPlan| {
        if is_latent(il, shape) {
            latent_attention(shape, &latent, plan);
            if has_index(il, shape) {
                index(shape, &latent, plan);
                pooling(shape, plan);
            }
        } else {
            plan.norm("attn_norm", shape.n_embd);
            kda(shape, Gates::LowRankFlat, plan);
        }
        plan.norm("ffn_norm", shape.n_embd);
        dense_then_experts(shape, plan, il < n_dense, experts, experts.n_ff);
        if il < shape.n_layer {
            for block in ["hc_attn", "hc_ffn"] {
                connection(shape, plan, block, 2 * STREAMS + STREAMS * STREAMS, 3);
            }
        }
    };
    layers(shape, plan, EMBEDDING, layer);
    plan.layer(shape.n_layer);
    layer(shape.n_layer, plan);
    prediction(shape, plan);
    Ok(())
}

fn pooled_metadata(shape: &Shape, latent: &Latent, plan: &mut ModelPlan) {
    let blocks = shape.n_layer + 1;
    base_metadata(shape, plan);
    plan.count("nextn_predict_layers", 1);
    plan.count("block_count", blocks);
    plan.counts("attention.head_count_kv", (0..blocks).map(|il| usize::from(is_latent(il, shape))));
    latent.metadata(shape, plan);
    plan.number("attention.layer_norm_epsilon", 1e-6);
    plan.count("ssm.conv_kernel", CONV_TAPS);
    plan.count("kda.head_dim", shape.head_dim);
    plan.number("kda.gate_lower_bound", -5.0);
    index_metadata(shape, plan);
    plan.count("attention.indexer.kpool", POOL);
    plan.flag("attention.indexer.kpool_select_tail", true);
    let types = (0..shape.n_layer).map(|il| usize::from(has_index(il, shape)));
    plan.counts("attention.indexer.types", types);
    streams_metadata(plan);
    plan.count("hyper_connection.sinkhorn_iterations", ROUNDS);
    plan.numbers("swiglu_clamp_exp", vec![BOUND; blocks]);
    plan.numbers("swiglu_clamp_shexp", vec![SHARED_BOUND; blocks]);
    deepseek_keys(plan, SIGMOID, true);
}

/// Every second layer has latent attention, and so has the block behind the last.
fn is_latent(il: usize, shape: &Shape) -> bool {
    il % 2 == 1 || il == shape.n_layer
}

/// Every second of these has an index.
fn has_index(il: usize, shape: &Shape) -> bool {
    il % 4 == 1 || il == shape.n_layer
}

/// Tensors that make the keys of pools.
fn pooling(shape: &Shape, plan: &mut ModelPlan) {
    let (_, head_dim) = index_heads(shape);
    plan.matrix("indexer_compressor_gate", Role::Matrix, &[shape.n_embd, head_dim], 1.0);
    plan.precise("indexer_compressor_ape.weight", &[head_dim, POOL], Fill::Normal(BASE));
}

/// deepseek4: streams that mix, attention to a window and to entries, experts that a table chooses in the first layers.
pub(crate) fn deepseek4(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    let experts = shape.experts.ok_or("it has experts, choose a size that has them")?;
    let n_by_token = (shape.n_layer / 2).clamp(1, MOST_BY_TOKEN);
    let n_all = shape.n_layer + shape.drafts;
    base_metadata(shape, plan);
    count_predictions(shape, plan, shape.drafts);
    metadata(shape, plan);
    streams_metadata(plan);
    plan.count("hyper_connection.sinkhorn_iterations", ROUNDS);
    plan.count("hash_layer_count", n_by_token);
    plan.numbers("swiglu_clamp_exp", vec![BOUND; n_all]);
    plan.numbers("swiglu_clamp_shexp", vec![SHARED_BOUND; n_all]);
    plan.count("expert_feed_forward_length", experts.n_ff);
    plan.count("expert_shared_count", 1);
    plan.number("expert_weights_scale", 1.5);
    plan.flag("expert_weights_norm", true);
    plan.count("expert_gating_func", SQRT_SOFTPLUS);
    embedding(shape, plan, EMBEDDING);
    for il in 0..n_all {
        plan.layer(il);
        attention(shape, il, plan);
        sinks(shape, plan);
        ffn(shape, plan);
        if il < n_by_token {
            plan.token_experts(shape.vocab, experts.used, experts.count);
        } else {
            plan.bias("exp_probs_b", experts.count);
        }
        ffn_matrices(plan, "_shexp", shape.n_embd, experts.n_ff);
        for block in ["hc_attn", "hc_ffn"] {
            connection(shape, plan, block, (2 + STREAMS) * STREAMS, 3);
        }
        if il >= shape.n_layer {
            prediction(shape, plan);
        }
    }
    head_connection(shape, plan);
    Ok(())
}

fn streams_metadata(plan: &mut ModelPlan) {
    plan.count("hyper_connection.count", STREAMS);
    plan.number("hyper_connection.epsilon", 1e-6);
}

/// Tensors that connect a block with the streams.
fn connection(shape: &Shape, plan: &mut ModelPlan, block: &str, n: usize, n_scales: usize) {
    let width = STREAMS * shape.n_embd;
    let fill = Fill::Normal(1.0 / (width as f32).sqrt());
    plan.precise(&format!("{block}_fn.weight"), &[width, n], fill);
    plan.precise(&format!("{block}_base.weight"), &[n], Fill::Normal(BASE));
    plan.norm(&format!("{block}_scale"), n_scales);
}

/// Tensors that connect the head with the streams.
fn head_connection(shape: &Shape, plan: &mut ModelPlan) {
    let width = STREAMS * shape.n_embd;
    let deviation = 1.0 / (width as f32).sqrt();
    plan.global("output_hc_fn", Role::Precise, &[width, STREAMS], deviation);
    plan.global("output_hc_base", Role::Precise, &[STREAMS], BASE);
    plan.global_norm("output_hc_scale", 1);
}
