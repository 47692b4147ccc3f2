//! Synthetic models of Qwen3.8-Flash-Next's kind: qwen4exp.

use super::indexed::{mean_index, mean_index_metadata};
use crate::Shape;
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::recurrent::delta::{
    NetShape, delta_net, gated_attention, is_full, net_metadata, qwen_experts, sections,
    shared_and_routed,
};
use crate::shared_parts::{EMBEDDING, embedding_matrices};

/// Streams, as the large model has them.
const STREAMS: usize = 4;
/// Between two matrices of gates, rows are this much narrower than a stream, and not narrower than `LEAST_RANK`.
const NARROWER: usize = 8;
const LEAST_RANK: usize = 4;
/// Tokens of the longest n-gram.
const LONGEST: usize = 3;
/// Heads of each n-gram in large and in small models.
const HEADS: [usize; 2] = [8, 2];
/// Narrower models are small.
const SMALL: usize = 512;
/// Taps of the convolution over embedded n-grams.
const CONV_TAPS: usize = 4;
/// Factors of tokens, odd and as large as those of the large model.
const MULTIPLIERS: [u64; LONGEST] = [0x0a3b_1c5d_2e7f, 0x1357_9bdf_0247, 0x08c6_4a2e_91d3];
/// A token that ends a text; one that golden texts have.
const END: usize = 261;
/// Gain of the gates' matrices. The input of gates is divided by the number of streams, so that with the usual matrices
/// they would be nearly constant.
const GATE_GAIN: f32 = 4.0;

/// qwen4exp: streams that blocks read and write through gates, gated delta nets, attention with an index of means in one of
/// four layers, and embedded n-grams in the second.
pub(crate) fn qwen4exp(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let net = NetShape::of(shape);
    qwen_experts(shape, plan)?;
    net_metadata(shape, &net, plan);
    sections(shape, plan);
    let ratio = mean_index_metadata(shape, plan);
    let ratios = (0..shape.n_layer).map(|il| if is_full(il) { ratio } else { 0 });
    plan.counts("attention.compress_ratios", ratios);
    plan.count("hyper_connection.count", STREAMS);
    plan.count("hyper_connection.low_rank", rank(shape));
    ngram_metadata(shape, plan)?;
    embedding_matrices(shape, plan, EMBEDDING);
    table(shape, plan);
    for il in 0..shape.n_layer {
        plan.layer(il);
        if il == ngram_layer(shape) {
            ngrams(shape, plan);
        }
        connection(shape, plan, "hc_attn");
        if is_full(il) {
            gated_attention(shape, plan);
            mean_index(shape, plan);
        } else {
            delta_net(shape, &net, plan, false)
        }
        connection(shape, plan, "hc_ffn");
        shared_and_routed(shape, plan);
    }
    let (width, rank) = (STREAMS * shape.n_embd, rank(shape));
    plan.global_norm("output_hc_norm", width);
    plan.global("output_hc_down", Role::Matrix, &[width, rank], deviation(width));
    plan.global("output_hc_up", Role::Matrix, &[rank, width], deviation(rank));
    Ok(())
}

fn deviation(width: usize) -> f32 {
    GATE_GAIN / (width as f32).sqrt()
}

fn rank(shape: &Shape) -> usize {
    (shape.n_embd / NARROWER).max(LEAST_RANK)
}

/// Tensors that connect a block with the streams.
fn connection(shape: &Shape, plan: &mut ModelPlan, block: &str) {
    let (width, rank) = (STREAMS * shape.n_embd, rank(shape));
    plan.norm(&format!("{block}_norm"), width);
    plan.matrix(&format!("{block}_down"), Role::Matrix, &[width, rank], GATE_GAIN);
    plan.matrix(&format!("{block}_up"), Role::Matrix, &[rank, width], GATE_GAIN);
    plan.matrix(&format!("{block}_inject"), Role::Matrix, &[width, STREAMS], GATE_GAIN);
}

/// The second layer, which has a delta net; the only one of a model that has one.
fn ngram_layer(shape: &Shape) -> usize {
    1.min(shape.n_layer - 1)
}

fn n_heads(shape: &Shape) -> usize {
    let per_ngram = if shape.n_embd < SMALL { HEADS[1] } else { HEADS[0] };
    (LONGEST - 1) * per_ngram
}

/// Rows of each head: no two have as many.
fn head_sizes(shape: &Shape) -> impl Iterator<Item = u64> + use<'_> {
    (0..n_heads(shape)).map(|head| (shape.vocab + 2 * head + 1) as u64)
}

fn ngram_metadata(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let n_heads = n_heads(shape);
    if !shape.n_embd.is_multiple_of(n_heads) {
        return Err(format!("a width of {}, must be a multiple of {n_heads}", shape.n_embd));
    }
    plan.counts("ple.layers", [ngram_layer(shape)]);
    plan.count("ple.ngram_size", LONGEST);
    plan.count("ple.heads_per_ngram", n_heads / (LONGEST - 1));
    plan.count("ple.conv_kernel", CONV_TAPS);
    plan.count("ple.eos_token_id", END);
    plan.count("embedding_length_per_layer_input", shape.n_embd / n_heads);
    let firsts = head_sizes(shape).scan(0, |next, size| {
        *next += size;
        Some(*next - size)
    });
    plan.wide_counts("ple.layer_multipliers", MULTIPLIERS);
    plan.wide_counts("ple.head_offsets", firsts);
    plan.wide_counts("ple.head_vocab_sizes", head_sizes(shape));
    Ok(())
}

fn table(shape: &Shape, plan: &mut ModelPlan) {
    let rows = head_sizes(shape).sum::<u64>() as usize;
    let ne = [shape.n_embd / n_heads(shape), rows];
    plan.global("per_layer_token_embd", Role::Embedding, &ne, EMBEDDING);
}

/// The tensors of a layer with embedded n-grams.
fn ngrams(shape: &Shape, plan: &mut ModelPlan) {
    let (n_embd, width) = (shape.n_embd, STREAMS * shape.n_embd);
    plan.matrix("ple_key", Role::Matrix, &[n_embd, width], 1.0);
    plan.matrix("ple_value", Role::Matrix, &[n_embd, n_embd], 1.0);
    for norm in ["ple_norm_key", "ple_norm_query", "ple_norm_conv"] {
        plan.norm(norm, width);
    }
    let taps = Fill::Normal(1.0 / (CONV_TAPS as f32).sqrt());
    plan.precise("ple_conv1d.weight", &[CONV_TAPS, width], taps);
}
