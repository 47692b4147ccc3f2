//! Synthetic models whose attention chooses positions by an index: deepseek32, glm-dsa, dots3note and minimax-m3; and the
//! index of qwen4exp.

use super::deepseek::{Latent, latent_attention, latent_blocks, latent_layers, latent_model, yarn};
use crate::Shape;
use crate::decoders::mixtures::{self, SIGMOID, deepseek_keys, dense_then_experts};
use crate::decoders::plain::{
    dense_layers, half_rotated, head_gate, head_norms, listed_windows, untied,
};
use crate::file_type::Role;
use crate::plan::ModelPlan;
use crate::shared_parts::{EMBEDDING, attention};

/// Positions that a row of a large model attends to.
const PER_ROW: usize = 2048;
/// Positions of a block, blocks of a row and newest blocks among them, in MiniMax-M3.
const BLOCKS: [usize; 3] = [128, 16, 1];
/// The same in models so small that a hundred positions must be many blocks.
const SMALL_BLOCKS: [usize; 3] = [8, 3, 1];
/// Narrower models are small.
const SMALL: usize = 512;
/// Least heads of an index: with a few, many positions have the score 0, and which of them are chosen is chance.
const LEAST_HEADS: usize = 16;
/// Least width of an index's heads.
const LEAST_HEAD: usize = 64;

/// deepseek32: deepseek2 with an index in every layer.
pub(crate) fn deepseek32(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    yarn(shape, plan);
    index_metadata(shape, plan);
    latent_model(shape, plan, |_, latent, plan| index(shape, latent, plan))?;
    latent_blocks(shape, plan, |latent, plan| index(shape, latent, plan))
}

/// glm-dsa as GLM-5.2 has it: the first layer has an index, and then every fourth; the others attend to the same
/// positions.
pub(crate) fn glm_dsa(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    index_metadata(shape, plan);
    let types = (0..shape.n_layer).map(|il| usize::from(has_index_of_every_fourth(il)));
    plan.counts("attention.indexer.types", types);
    latent_model(shape, plan, |il, latent, plan| {
        if has_index_of_every_fourth(il) {
            index(shape, latent, plan);
        }
    })?;
    latent_blocks(shape, plan, |latent, plan| index(shape, latent, plan))
}

/// dots3note: windows in two of three layers, whose heads and compressed rows are narrower, and an index in the third.
pub(crate) fn dots3note(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let latent = Latent::of(shape);
    let narrow = Latent { kv_rank: latent.kv_rank / 2, ..latent };
    let of_window = Shape { head_dim: shape.head_dim / 2, ..shape.clone() };
    let windows = listed_windows(shape, plan, 3);
    index_metadata(shape, plan);
    plan.counts("attention.indexer.types", windows.iter().map(|&has| usize::from(!has)));
    plan.number("rope.freq_base_swa", 1000.0);
    plan.count("attention.kv_lora_rank_swa", narrow.kv_rank);
    plan.count("attention.key_length_swa", narrow.kv_rank + narrow.n_pe);
    plan.count("attention.value_length_swa", narrow.kv_rank);
    plan.count("attention.key_length_mla_swa", of_window.head_dim + latent.n_pe);
    plan.count("attention.value_length_mla_swa", of_window.head_dim);
    latent_layers(shape, &latent, plan, |il, plan| {
        if windows[il] {
            latent_attention(&of_window, &narrow, plan)
        } else {
            latent_attention(shape, &latent, plan);
            index(shape, &latent, plan);
        }
        plan.norm("attn_k_norm", latent.n_pe);
        head_gate(shape, plan, shape.n_head);
    })
}

/// Whether a layer has an index in models where the first layer has one, and then every fourth.
pub(super) fn has_index_of_every_fourth(il: usize) -> bool {
    il == 0 || il % 4 == 2
}

pub(super) fn index_metadata(shape: &Shape, plan: &mut ModelPlan) {
    let (n_head, head_dim) = index_heads(shape);
    plan.count("attention.indexer.head_count", n_head);
    plan.count("attention.indexer.key_length", head_dim);
    plan.count("attention.indexer.top_k", PER_ROW.min(shape.n_embd / 2));
}

/// Half as many heads as the attention has; their width must be a power of two in llama.cpp.
pub(super) fn index_heads(shape: &Shape) -> (usize, usize) {
    (shape.n_head.div_ceil(2).max(LEAST_HEADS), shape.head_dim.next_power_of_two().max(LEAST_HEAD))
}

/// The tensors of an index.
pub(super) fn index(shape: &Shape, latent: &Latent, plan: &mut ModelPlan) {
    let (n_head, head_dim) = index_heads(shape);
    plan.matrix("indexer.attn_q_b", Role::Matrix, &[latent.q_rank, n_head * head_dim], 1.0);
    plan.matrix("indexer.attn_k", Role::Matrix, &[shape.n_embd, head_dim], 1.0);
    plan.norm("indexer.k_norm", head_dim);
    plan.bias("indexer.k_norm", head_dim);
    plan.matrix("indexer.proj", Role::Matrix, &[shape.n_embd, n_head], 1.0);
}

/// minimax-m3: half-rotated heads with norms; dense layers first, then layers with experts and an index, which has a head
/// for each head of keys and values.
pub(crate) fn minimax_m3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    let experts = mixtures::metadata(shape, plan)?;
    half_rotated(shape, plan);
    deepseek_keys(plan, SIGMOID, true);
    let n_dense = dense_layers(shape);
    plan.count("leading_dense_block_count", n_dense);
    let small = shape.n_embd < SMALL;
    let [block_size, top_k, local_blocks] = if small { SMALL_BLOCKS } else { BLOCKS };
    plan.count("attention.indexer.head_count", shape.n_head_kv);
    plan.count("attention.indexer.key_length", shape.head_dim);
    plan.count("attention.indexer.block_size", block_size);
    plan.count("attention.indexer.top_k", top_k);
    plan.count("attention.indexer.local_blocks", local_blocks);
    mixtures::layers(shape, plan, EMBEDDING, |il, plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        if il >= n_dense {
            block_index(shape, plan);
        }
        plan.norm("ffn_norm", shape.n_embd);
        dense_then_experts(shape, plan, il < n_dense, experts, experts.n_ff);
    });
    Ok(())
}

/// Positions of a block whose keys are averaged.
const AVERAGED: usize = 4;

/// Metadata of an index of means: blocks of [`AVERAGED`] positions, as many of them as a row attends to in other models.
pub(super) fn mean_index_metadata(shape: &Shape, plan: &mut ModelPlan) -> usize {
    index_metadata(shape, plan);
    let per_row = PER_ROW.min(shape.n_embd / 2) / AVERAGED;
    plan.count("attention.indexer.top_k", per_row.max(1) * AVERAGED);
    AVERAGED
}

/// The tensors of an index of means.
pub(super) fn mean_index(shape: &Shape, plan: &mut ModelPlan) {
    let (n_head, head_dim) = index_heads(shape);
    narrow_heads(shape.n_embd, n_head, head_dim, Role::Matrix, plan);
}

/// The tensors of an index of blocks. Files have them in f32, whatever the other matrices are.
fn block_index(shape: &Shape, plan: &mut ModelPlan) {
    narrow_heads(shape.n_embd, shape.n_head_kv, shape.head_dim, Role::Precise, plan);
}

fn narrow_heads(n_embd: usize, n_head: usize, head_dim: usize, role: Role, plan: &mut ModelPlan) {
    plan.matrix("indexer.q_proj", role, &[n_embd, n_head * head_dim], 1.0);
    plan.matrix("indexer.k_proj", role, &[n_embd, head_dim], 1.0);
    plan.norm("indexer.q_norm", head_dim);
    plan.norm("indexer.k_norm", head_dim);
}
