//! Synthetic decoders of later and rarer families, dense ones: llama's block with gates of heads, norms inside blocks,
//! or the embedded rows added again.

use super::classic::two_matrices;
use super::dense::layers;
use super::plain::{
    fused_ffn, fused_projections, head_gate, head_norms, listed_windows, projections, qkv_biases,
    untied, whole_heads, window, yarn,
};
use crate::Shape;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{
    EMBEDDING, attention, embedding_matrices, ffn, ffn_matrices, refuse_experts,
    transformer_metadata,
};

/// qwen, the first: one tensor for queries, keys and values, an FFN half as wide as its key says.
pub(crate) fn qwen(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    whole_heads(shape)?;
    let shape = &Shape { n_head_kv: shape.n_head, ..shape.clone() };
    transformer_metadata(shape, plan);
    plan.count("feed_forward_length", 2 * shape.n_ff);
    layers(shape, plan, EMBEDDING, |plan| {
        plan.norm("attn_norm", shape.n_embd);
        fused_projections(shape, plan);
        plan.bias("attn_qkv", 3 * shape.n_embd);
        ffn(shape, plan);
    })
}

/// plamo: attention and FFN read the same normed rows.
pub(crate) fn plamo(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    whole_heads(shape)?;
    transformer_metadata(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    })
}

/// plamo3: windows in seven of eight layers, norms of heads and behind blocks, a fused way up.
pub(crate) fn plamo3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    transformer_metadata(shape, plan);
    window(shape, plan);
    yarn(shape, plan);
    plan.count("attention.sliding_window_pattern", if shape.n_layer < 8 { 2 } else { 8 });
    plan.number("rope.freq_base", 1_000_000.0);
    layers(shape, plan, EMBEDDING, |plan| {
        plan.norm("attn_norm", shape.n_embd);
        fused_projections(shape, plan);
        head_norms(shape, plan);
        plan.bare_norm("post_attention_norm", shape.n_embd);
        plan.norm("ffn_norm", shape.n_embd);
        fused_ffn(shape, plan);
        plan.bare_norm("post_ffw_norm", shape.n_embd);
    })
}

/// maincoder: norms of each head behind the rotation.
pub(crate) fn maincoder(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    transformer_metadata(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        ffn(shape, plan);
    })
}

/// pangu-embedded: biases of attention.
pub(crate) fn pangu(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    transformer_metadata(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        qkv_biases(shape, plan);
        plan.bias("attn_output", shape.n_embd);
        ffn(shape, plan);
    })
}

/// spark2_5: a gate for each head, windows with a rotation of their own, gated GELUs.
pub(crate) fn spark2_5(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    transformer_metadata(shape, plan);
    listed_windows(shape, plan, 2);
    plan.count("rope.dimension_count", shape.head_dim / 2);
    plan.count("rope.dimension_count_swa", shape.head_dim);
    plan.number("rope.freq_base_swa", 500.0);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        head_gate(shape, plan, shape.n_head);
        ffn(shape, plan);
    })
}

/// muse-glimmer: norms around everything, also of the embedded rows, a gate for each value of a head, bounded logits.
pub(crate) fn muse_glimmer(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    transformer_metadata(shape, plan);
    listed_windows(shape, plan, 4);
    plan.number("rope.freq_base_swa", 500.0);
    plan.number("logit_scale", 0.5);
    plan.number("final_logit_softcapping", 2.0);
    layers(shape, plan, 2.0 * EMBEDDING, |plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        head_gate(shape, plan, shape.n_head * shape.head_dim);
        plan.norm("post_attention_norm", shape.n_embd);
        ffn(shape, plan);
        plan.norm("post_ffw_norm", shape.n_embd);
    })
}

/// talkie: norms without weights, a factor for each query head, the embedded rows again behind every layer.
pub(crate) fn talkie(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    refuse_experts(shape)?;
    transformer_metadata(shape, plan);
    plan.number("logit_scale", 0.5);
    embedding_matrices(shape, plan, 2.0 * EMBEDDING);
    for il in 0..shape.n_layer {
        plan.layer(il);
        projections(shape, plan);
        plan.matrix_norm("attn_q_norm", &[1, shape.n_head]);
        ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
        plan.precise("layer_output_scale.weight", &[1], Fill::Normal(0.5));
    }
    Ok(())
}

/// bitnet: norms inside attention and FFN, and a scale beside each matrix.
pub(crate) fn bitnet(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    whole_heads(shape)?;
    if !shape.tied {
        return Err("its output matrix is the embedding, choose a size where it is".to_owned());
    }
    transformer_metadata(shape, plan);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        plan.norm("attn_sub_norm", shape.n_embd);
        ffn(shape, plan);
        plan.norm("ffn_sub_norm", shape.n_ff);
        for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
        {
            plan.precise(&format!("{part}.scale"), &[1], Fill::AroundOne(0.3));
        }
    })
}

/// apertus: norms of each head, xIELU with constants of each layer's own.
pub(crate) fn apertus(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    untied(shape)?;
    transformer_metadata(shape, plan);
    let layers_of =
        |first: f32, step: f32| (0..shape.n_layer).map(move |il| first + step * il as f32);
    plan.plain_numbers("xielu.alpha_n", layers_of(0.6, 0.1));
    plan.plain_numbers("xielu.alpha_p", layers_of(0.3, -0.1));
    plan.plain_numbers("xielu.beta", layers_of(0.5, 0.0));
    plan.plain_numbers("xielu.eps", layers_of(-1e-6, 0.0));
    plan.global_norm("rope_freqs", shape.head_dim / 2);
    layers(shape, plan, EMBEDDING, |plan| {
        attention(shape, plan);
        head_norms(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        two_matrices(shape, plan, false);
    })
}
