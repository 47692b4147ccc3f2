//! Synthetic models whose attention chooses positions by an index: deepseek32 and glm-dsa.

use super::Shape;
use super::deepseek::{Latent, latent_model, yarn};
use super::file_type::Role;
use super::plan::ModelPlan;

/// Positions that a row of a large model attends to.
const PER_ROW: usize = 2048;
/// Least heads of an index: with a few, many positions have the score 0, and which of them are chosen is chance.
const LEAST_HEADS: usize = 16;
/// Least width of an index's heads.
const LEAST_HEAD: usize = 64;

/// deepseek32: deepseek2 with an index in every layer.
pub(super) fn deepseek32(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    yarn(shape, plan);
    index_metadata(shape, plan);
    latent_model(shape, plan, |_, latent, plan| index(shape, latent, plan))
}

/// glm-dsa as GLM-5.2 has it: the first layer has an index, and then every fourth; the others attend to the same
/// positions.
pub(super) fn glm_dsa(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let has_index = |il: usize| il == 0 || il % 4 == 2;
    index_metadata(shape, plan);
    let types = (0..shape.n_layer).map(|il| usize::from(has_index(il)));
    plan.counts("attention.indexer.types", types);
    latent_model(shape, plan, |il, latent, plan| {
        if has_index(il) {
            index(shape, latent, plan);
        }
    })
}

fn index_metadata(shape: &Shape, plan: &mut ModelPlan) {
    let (n_head, head_dim) = index_heads(shape);
    plan.count("attention.indexer.head_count", n_head);
    plan.count("attention.indexer.key_length", head_dim);
    plan.count("attention.indexer.top_k", PER_ROW.min(shape.n_embd / 2));
}

/// Half as many heads as the attention has; their width must be a power of two in llama.cpp.
fn index_heads(shape: &Shape) -> (usize, usize) {
    (shape.n_head.div_ceil(2).max(LEAST_HEADS), shape.head_dim.next_power_of_two().max(LEAST_HEAD))
}

/// The tensors of an index.
fn index(shape: &Shape, latent: &Latent, plan: &mut ModelPlan) {
    let (n_head, head_dim) = index_heads(shape);
    plan.matrix("indexer.attn_q_b", Role::Matrix, &[latent.q_rank, n_head * head_dim], 1.0);
    plan.matrix("indexer.attn_k", Role::Matrix, &[shape.n_embd, head_dim], 1.0);
    plan.norm("indexer.k_norm", head_dim);
    plan.bias("indexer.k_norm", head_dim);
    plan.matrix("indexer.proj", Role::Matrix, &[shape.n_embd, n_head], 1.0);
}
