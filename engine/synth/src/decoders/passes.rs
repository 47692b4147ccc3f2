//! Synthetic models that go through their layers more than once: nanbeige and hrm_text. A shape's layers are those of the
//! file.

use super::dense::layers;
use super::plain::{head_gate, projections};
use crate::Shape;
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    EMBEDDING, attention, embedding_matrices, ffn, ffn_matrices, refuse_experts,
    transformer_metadata,
};

/// Passes through all layers.
const LOOPS: usize = 2;
/// Cycles of two stacks, and passes through the low one in each.
const CYCLES: [usize; 2] = [2, 2];

/// nanbeige: llama's block, all layers twice.
pub(crate) fn nanbeige(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    plan.count("num_loops", LOOPS);
    plan.global_norm("rope_freqs", shape.head_dim / 2);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        ffn(shape, plan);
    })
}

/// hrm_text: two stacks that take turns, gates of each value of a head, no norms with weights.
pub(crate) fn hrm_text(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    const EMBEDDING_SCALE: f32 = 4.0;
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    let (per_stack, [cycles, low]) = (shape.n_layer.div_ceil(2), CYCLES);
    plan.count("block_count", per_stack * cycles * (low + 1));
    plan.count("hrm.layers_per_stack", per_stack);
    plan.count("hrm.h_cycles", cycles);
    plan.count("hrm.l_cycles", low);
    plan.flag("hrm.prefix_lm", false);
    plan.number("embedding_scale", EMBEDDING_SCALE);
    embedding_matrices(shape, plan, EMBEDDING / EMBEDDING_SCALE);
    plan.bare_global("hrm.z_l_init", Role::Precise, &[shape.n_embd], Fill::Normal(EMBEDDING));
    for il in 0..2 * per_stack {
        plan.layer(il);
        projections(shape, plan);
        head_gate(shape, plan, shape.n_head * shape.head_dim);
        ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    }
    Ok(())
}
