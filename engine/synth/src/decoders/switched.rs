//! Synthetic models with adapters inside the file, which tokens switch on: graniteswitch.

use super::plain::fused_projections;
use crate::Shape;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    EMBEDDING, embedding, ffn, granite_scales, refuse_experts, transformer_metadata,
};

/// Tokens that switch on one adapter each. Tests' prompts have them so that rows use all adapters, and means of several.
const SWITCHING: [usize; 3] = [284, 286, 276];
/// Tokens as which these are embedded.
const EMBEDDED: [usize; 3] = [260, 261, 262];
/// Width in the middle of an adapter.
const RANK: usize = 8;
/// Gain of an adapter's way back.
const GAIN: f32 = 0.5;

/// graniteswitch: granite with an adapter beside each projection.
pub(crate) fn graniteswitch(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    let embedding_scale = granite_scales(shape, plan);
    plan.count("adapters.count", SWITCHING.len());
    plan.count("adapters.lora_rank", RANK);
    plan.counts("adapters.token_ids_activate", SWITCHING);
    plan.counts("adapters.token_ids_substitute", EMBEDDED);
    embedding(shape, plan, EMBEDDING / embedding_scale);
    let (n_embd, n_ff) = (shape.n_embd, shape.n_ff);
    let (q, kv) = (shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", n_embd);
        fused_projections(shape, plan);
        ffn(shape, plan);
        let attention =
            [("q", n_embd, q), ("k", n_embd, kv), ("v", n_embd, kv), ("output", q, n_embd)];
        for (part, cols, rows) in attention {
            adapters(plan, &format!("attn_{part}"), cols, rows);
        }
        for (part, cols, rows) in
            [("gate", n_embd, n_ff), ("up", n_embd, n_ff), ("down", n_ff, n_embd)]
        {
            adapters(plan, &format!("ffn_{part}"), cols, rows);
        }
    }
    Ok(())
}

/// The adapters of a projection `[rows, cols]`: one for rows without an adapter, which real models have zeros for, and one
/// for each token that switches one on.
fn adapters(plan: &mut ModelPlan, name: &str, cols: usize, rows: usize) {
    let n = SWITCHING.len() + 1;
    let fill = |gain: f32, width: usize| Fill::Normal(gain / (width as f32).sqrt());
    plan.precise(&format!("{name}.lora_a"), &[cols, RANK, n], fill(1.0, cols));
    plan.precise(&format!("{name}.lora_b"), &[RANK, rows, n], fill(GAIN, RANK));
}
