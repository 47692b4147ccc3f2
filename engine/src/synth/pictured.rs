//! Synthetic texts of models that read images too: a decoder whose rotated pairs are divided among the axes of pictures.

use super::Shape;
use super::decoder::{experts, head_norms, qkv_biases, whole_heads};
use super::dense::layers;
use super::parts::{EMBEDDING, attention, embedding, ffn, transformer_metadata};
use super::plan::ModelPlan;

/// First layers that take more of an image than its rows, in the models that do.
const DEEPSTACK_LAYERS: usize = 3;

/// qwen2vl: biases, more pairs for height and width than for time.
pub(super) fn qwen2vl(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    whole_heads(shape)?;
    sections(shape, plan, |n| three(n, n / 4))?;
    transformer_metadata(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        qkv_biases(shape, plan);
        ffn(shape, plan);
    })
}

/// qwen3vl: norms of each head, sections in turns of which the last pairs fall into the fourth.
pub(super) fn qwen3vl(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    qwen3vl_metadata(shape, plan)?;
    layers(shape, plan, EMBEDDING, |plan| qwen3vl_layer(shape, plan))
}

/// qwen3vlmoe: qwen3vl with experts.
pub(super) fn qwen3vlmoe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    plan.count("expert_feed_forward_length", experts(shape)?.n_ff);
    qwen3vl_metadata(shape, plan)?;
    embedding(shape, plan, EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        qwen3vl_layer(shape, plan);
    }
    Ok(())
}

fn qwen3vl_metadata(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    sections(shape, plan, |n| three(n, 3 * n / 8))?;
    transformer_metadata(shape, plan);
    plan.count("n_deepstack_layers", DEEPSTACK_LAYERS.min(shape.n_layer));
    Ok(())
}

fn qwen3vl_layer(shape: &Shape, plan: &mut ModelPlan) {
    attention(shape, plan);
    head_norms(shape, plan);
    ffn(shape, plan);
}

/// hunyuan_vl: norms of each head behind a rotation whose base is stretched, four sections of the same size.
pub(super) fn hunyuan_vl(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    sections(shape, plan, |n| [n / 4, n / 4, n / 4, n - 3 * (n / 4)])?;
    transformer_metadata(shape, plan);
    plan.text("rope.scaling.type", "none");
    plan.number("rope.scaling.factor", 1.0);
    plan.number("rope.scaling.alpha", 2.0);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        ffn(shape, plan);
    })
}

/// paddleocr: llama's block with sections.
pub(super) fn paddleocr(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    sections(shape, plan, |n| three(n, n / 4))?;
    transformer_metadata(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        ffn(shape, plan);
    })
}

/// `of_time` of `n` pairs for time, the others for height and width.
fn three(n: usize, of_time: usize) -> [usize; 4] {
    let height = (n - of_time) / 2;
    [of_time, height, n - of_time - height, 0]
}

/// The sections that `divide` makes of a head's pairs.
fn sections(
    shape: &Shape,
    plan: &mut ModelPlan,
    divide: impl Fn(usize) -> [usize; 4],
) -> Result<(), String> {
    let n_pairs = shape.head_dim / 2;
    if n_pairs < 4 {
        return Err(format!(
            "heads of {}, must be 8 at least: they have 4 sections",
            shape.head_dim
        ));
    }
    plan.counts("rope.dimension_sections", divide(n_pairs));
    Ok(())
}
