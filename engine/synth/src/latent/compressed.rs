//! Attention to a window and to entries, as deepseek4 has it.

use super::indexed::index_heads;
use crate::Shape;
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::ATTENTION_GAIN;

/// Narrower models are small: a hundred positions must be more than their rows attend to.
const SMALL: usize = 512;
/// Spread of what a gate gains by the place in its entry.
const BY_PLACE: f32 = 0.5;
/// Positions of an entry of the two kinds: with an index, and without.
const EVERY: [usize; 2] = [4, 128];

/// Sizes of the attention, in DeepSeek-V4's proportions to a head.
struct Sizes {
    /// Width of a key.
    width: usize,
    n_rot: usize,
    q_rank: usize,
    n_group: usize,
    group_rank: usize,
}

impl Sizes {
    fn of(shape: &Shape) -> Self {
        let is_small = shape.n_embd < SMALL;
        Self {
            width: if is_small { 2 } else { 4 } * shape.head_dim,
            n_rot: shape.head_dim / 2,
            q_rank: (8 * shape.head_dim).min(shape.n_embd * 3 / 4),
            n_group: if shape.n_head.is_multiple_of(2) { shape.n_head.min(16) / 2 } else { 1 },
            group_rank: (8 * shape.head_dim).min(shape.n_embd / 2),
        }
    }
}

/// Positions of an entry of layer `il`; `None`: it has none, as the first and a block of drafts.
fn every(shape: &Shape, il: usize) -> Option<usize> {
    il.checked_sub(1).filter(|_| il < shape.n_layer).map(|before| EVERY[before % 2])
}

pub(super) fn metadata(shape: &Shape, plan: &mut ModelPlan) {
    let (sizes, is_small) = (Sizes::of(shape), shape.n_embd < SMALL);
    plan.count("attention.head_count_kv", 1);
    plan.count("attention.key_length", sizes.width);
    plan.count("attention.value_length", sizes.width);
    plan.count("attention.q_lora_rank", sizes.q_rank);
    plan.count("attention.sliding_window", if is_small { 16 } else { 128 });
    plan.count("attention.output_group_count", sizes.n_group);
    plan.count("attention.output_lora_rank", sizes.group_rank);
    let ratios = (0..shape.n_layer + shape.drafts).map(|il| every(shape, il).unwrap_or(0));
    plan.counts("attention.compress_ratios", ratios);
    plan.number("attention.compress_rope_freq_base", 160_000.0);
    plan.count("rope.dimension_count", sizes.n_rot);
    plan.text("rope.scaling.type", "yarn");
    plan.number("rope.scaling.factor", 4.0);
    plan.count("rope.scaling.original_context_length", shape.context.div_ceil(4));
    let (n_head, head_dim) = index_heads(shape);
    plan.count("attention.indexer.head_count", n_head);
    plan.count("attention.indexer.key_length", head_dim);
    plan.count("attention.indexer.top_k", if is_small { 8 } else { 512 });
}

/// The tensors of a layer's attention and of the norm before it, without its sinks.
pub(super) fn attention(shape: &Shape, il: usize, plan: &mut ModelPlan) {
    let Sizes { width, q_rank, n_group, group_rank, .. } = Sizes::of(shape);
    let (n_embd, n_head) = (shape.n_embd, shape.n_head);
    plan.norm("attn_norm", n_embd);
    plan.matrix("attn_q_a", Role::Matrix, &[n_embd, q_rank], 1.0);
    plan.norm("attn_q_a_norm", q_rank);
    plan.matrix("attn_q_b", Role::Matrix, &[q_rank, n_head * width], 1.0);
    plan.matrix("attn_kv", Role::Matrix, &[n_embd, width], 1.0);
    plan.norm("attn_kv_a_norm", width);
    let of_group = n_head / n_group * width;
    plan.matrix("attn_output_a", Role::AttnOutput, &[of_group, n_group * group_rank], 1.0);
    let back = [n_group * group_rank, n_embd];
    plan.matrix("attn_output_b", Role::AttnOutput, &back, ATTENTION_GAIN);
    let Some(every) = every(shape, il) else { return };
    let overlaps = every == EVERY[0];
    compressor(plan, "attn_compressor", n_embd, width, every, overlaps);
    if overlaps {
        let (n_head, head_dim) = index_heads(shape);
        plan.matrix("indexer.proj", Role::Matrix, &[n_embd, n_head], 1.0);
        plan.matrix("indexer.attn_q_b", Role::Matrix, &[q_rank, n_head * head_dim], 1.0);
        compressor(plan, "indexer_compressor", n_embd, head_dim, every, overlaps);
    }
}

/// Tensors of the compressor, which makes entries of positions.
fn compressor(
    plan: &mut ModelPlan,
    stem: &str,
    n_embd: usize,
    width: usize,
    every: usize,
    overlaps: bool,
) {
    let n_input = if overlaps { 2 * width } else { width };
    plan.matrix(&format!("{stem}_kv"), Role::Matrix, &[n_embd, n_input], 1.0);
    plan.matrix(&format!("{stem}_gate"), Role::Matrix, &[n_embd, n_input], 1.0);
    let by_place = Fill::Normal(BY_PLACE);
    plan.precise(&format!("{stem}_ape.weight"), &[n_input, every], by_place);
    plan.norm(&format!("{stem}_norm"), width);
}
