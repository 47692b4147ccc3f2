//! Synthetic decoders whose layers are not all alike: fewer heads, narrower FFNs, or parts left out.

use super::plain::{fused_projections, head_norms};
use crate::Shape;
use crate::file_type::Role;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    ATTENTION_GAIN, EMBEDDING, attention, embedding, ffn_matrices, refuse_experts,
    transformer_metadata,
};

/// deci: of every four layers one is whole, one does nothing, one has a matrix in the place of attention, and one has
/// no attention.
pub(crate) fn deci(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    let layers = 0..shape.n_layer;
    let of_kind = |values: [usize; 4]| layers.clone().map(move |il| values[il % 4]);
    let (n_head, n_kv, n_ff) = (shape.n_head, shape.n_head_kv, shape.n_ff);
    plan.counts("attention.head_count", of_kind([n_head, 0, n_head, 0]));
    plan.counts("attention.head_count_kv", of_kind([n_kv, 0, 0, 0]));
    let widths = [n_ff, 0, n_ff, n_ff / 2];
    plan.counts("feed_forward_length", of_kind(widths));
    embedding(shape, plan, EMBEDDING);
    for il in layers {
        plan.layer(il);
        match il % 4 {
            0 => attention(shape, plan),
            2 => {
                let ne = [shape.n_embd; 2];
                plan.norm("attn_norm", shape.n_embd);
                plan.matrix("attn_output", Role::AttnOutput, &ne, ATTENTION_GAIN);
            }
            _ => {}
        }
        if widths[il % 4] > 0 {
            plan.norm("ffn_norm", shape.n_embd);
            ffn_matrices(plan, "", shape.n_embd, widths[il % 4]);
        }
    }
    Ok(())
}

/// openelm: every second layer has half of the heads, the others half of the FFN's width.
pub(crate) fn openelm(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    if !shape.tied {
        return Err("its output matrix is the embedding, choose a size where it is".to_owned());
    }
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    let of_layer = |il: usize| {
        let halved = |n: usize, is: bool| if is { n.div_ceil(2) } else { n };
        let [n_head, n_head_kv] = [shape.n_head, shape.n_head_kv].map(|n| halved(n, il % 2 == 1));
        Shape { n_head, n_head_kv, n_ff: halved(shape.n_ff, il.is_multiple_of(2)), ..shape.clone() }
    };
    let layers = 0..shape.n_layer;
    plan.counts("attention.head_count", layers.clone().map(|il| of_layer(il).n_head));
    plan.counts("attention.head_count_kv", layers.clone().map(|il| of_layer(il).n_head_kv));
    plan.counts("feed_forward_length", layers.clone().map(|il| of_layer(il).n_ff));
    embedding(shape, plan, EMBEDDING);
    for il in layers {
        let shape = &of_layer(il);
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        fused_projections(shape, plan);
        head_norms(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    }
    Ok(())
}
