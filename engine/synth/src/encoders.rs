//! Synthetic encoders: rows see all rows of their text, and there is no output matrix.
//!
//! Where there are two kinds of an architecture, sizes whose output matrix would be one of its own are of the second.

use super::Shape;
use super::file_type::Role;
use super::noise::Fill;
use super::plan::ModelPlan;
use crate::decoders::classic::{fused_with_biases, norm, two_matrices};
use crate::decoders::plain::{fused_ffn, fused_projections, projections, qkv_biases};
use crate::shared_parts::{
    ATTENTION_GAIN, EMBEDDING, RMS_EPSILON, attention, ffn, ffn_matrices, refuse_experts,
    transformer_metadata,
};

/// Positions of BERT's table.
const POSITIONS: usize = 512;
/// Spread of the rows of positions and of token types beside that of tokens.
const BESIDE_TOKENS: f32 = 0.5;
/// Positions of a window.
const WINDOW: usize = 32;
/// Buckets of distances, as T5's.
const BUCKETS: usize = 32;

/// llama.cpp's numbers of ways to make one vector of a text's rows.
#[derive(Clone, Copy)]
enum Pooling {
    Mean = 1,
    First = 2,
    Rank = 4,
}

/// Common start of all encoders: metadata and the embedding of tokens, with the spread `deviation`.
fn begin(
    shape: &Shape,
    plan: &mut ModelPlan,
    pooling: Pooling,
    deviation: f32,
) -> Result<(), String> {
    if shape.n_head * shape.head_dim != shape.n_embd || shape.n_head != shape.n_head_kv {
        let why =
            "its heads share nothing and are as wide as its rows, choose a size where they are";
        return Err(why.to_owned());
    }
    transformer_metadata(shape, plan);
    plan.flag("attention.causal", false);
    plan.count("pooling_type", pooling as usize);
    plan.global("token_embd", Role::Embedding, &[shape.n_embd, shape.vocab], deviation);
    Ok(())
}

/// As [`begin`], with BERT's word pieces, token types and norms.
fn begin_bert(shape: &Shape, plan: &mut ModelPlan, pooling: Pooling) -> Result<(), String> {
    begin(shape, plan, pooling, EMBEDDING)?;
    plan.word_pieces = true;
    plan.number("attention.layer_norm_epsilon", RMS_EPSILON);
    plan.global("token_types", Role::Precise, &[shape.n_embd, 2], BESIDE_TOKENS);
    plan.global_norm("token_embd_norm", shape.n_embd);
    plan.global_bias("token_embd_norm", shape.n_embd);
    Ok(())
}

/// Layers of `mixer` and `ffn`, with the norms after them.
fn bert_layers(
    shape: &Shape,
    plan: &mut ModelPlan,
    mixer: impl Fn(&mut ModelPlan),
    ffn: impl Fn(&mut ModelPlan, usize),
) {
    for il in 0..shape.n_layer {
        plan.layer(il);
        mixer(plan);
        norm(shape, plan, "attn_output_norm");
        ffn(plan, il);
        norm(shape, plan, "layer_output_norm");
    }
}

/// bert: rows of positions, GELU, biases everywhere. The second kind is a reranker.
pub(super) fn bert(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    begin_bert(shape, plan, if shape.tied { Pooling::First } else { Pooling::Rank })?;
    plan.count("context_length", POSITIONS);
    plan.global("position_embd", Role::Precise, &[shape.n_embd, POSITIONS], BESIDE_TOKENS);
    let mixer = |plan: &mut ModelPlan| {
        projections(shape, plan);
        qkv_biases(shape, plan);
        plan.bias("attn_output", shape.n_embd);
    };
    bert_layers(shape, plan, mixer, |plan, _| two_matrices(shape, plan, true));
    if !shape.tied {
        judge(shape, plan);
        plan.global_bias("cls", shape.n_embd);
    }
    Ok(())
}

/// The head of a reranker: one class behind a square matrix.
fn judge(shape: &Shape, plan: &mut ModelPlan) {
    let gain = 1.0 / (shape.n_embd as f32).sqrt();
    plan.global("cls", Role::Precise, &[shape.n_embd, shape.n_embd], gain);
    plan.global("cls.output", Role::Precise, &[shape.n_embd, 1], gain);
    plan.global_bias("cls.output", 1);
}

/// nomic-bert: rotation, SwiGLU, no biases.
pub(super) fn nomic_bert(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    begin_bert(shape, plan, Pooling::Mean)?;
    let ffn = |plan: &mut ModelPlan, _| ffn_matrices(plan, "", shape.n_embd, shape.n_ff);
    bert_layers(shape, plan, |plan| fused_projections(shape, plan), ffn);
    Ok(())
}

/// nomic-bert-moe: rotation, experts in every second layer, as wide as the FFN of the others.
pub(super) fn nomic_bert_moe(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    let Some(experts) = shape.experts.filter(|experts| experts.n_ff == shape.n_ff) else {
        return Err("it has experts as wide as its FFN, choose a size with these".to_owned());
    };
    begin_bert(shape, plan, Pooling::Mean)?;
    plan.count("moe_every_n_layers", 2);
    let ffn = |plan: &mut ModelPlan, il: usize| {
        if il.is_multiple_of(2) {
            return two_matrices(shape, plan, true);
        }
        let (wide, narrow) =
            ([shape.n_embd, shape.n_ff, experts.count], [shape.n_ff, shape.n_embd, experts.count]);
        plan.matrix("ffn_gate_inp", Role::Precise, &[shape.n_embd, experts.count], 1.0);
        plan.matrix("ffn_up_exps", Role::Expert, &wide, 1.0);
        plan.matrix("ffn_down_exps", Role::FfnDown { expert: true }, &narrow, 1.0);
    };
    bert_layers(shape, plan, |plan| fused_with_biases(shape, plan), ffn);
    Ok(())
}

/// jina-bert-v2: scores that fall with the distance, gated GELU. The second kind is for code: norms of queries and
/// keys, a second norm after attention, one tensor for gate and way up.
pub(super) fn jina_bert_v2(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    begin_bert(shape, plan, Pooling::Mean)?;
    let mixer = |plan: &mut ModelPlan| {
        projections(shape, plan);
        qkv_biases(shape, plan);
        plan.bias("attn_output", shape.n_embd);
        if !shape.tied {
            ["attn_q_norm", "attn_k_norm", "attn_norm_2"]
                .into_iter()
                .for_each(|name| norm(shape, plan, name));
        }
    };
    let ffn = |plan: &mut ModelPlan, _| {
        if shape.tied {
            ffn_matrices(plan, "", shape.n_embd, shape.n_ff)
        } else {
            fused_ffn(shape, plan)
        }
        plan.bias("ffn_down", shape.n_embd);
    };
    bert_layers(shape, plan, mixer, ffn);
    Ok(())
}

/// jina-bert-v3: rotation, GELU, biases everywhere.
pub(super) fn jina_bert_v3(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    begin_bert(shape, plan, Pooling::Mean)?;
    let ffn = |plan: &mut ModelPlan, _| two_matrices(shape, plan, true);
    bert_layers(shape, plan, |plan| fused_with_biases(shape, plan), ffn);
    Ok(())
}

/// neo-bert: RMS norms before the blocks, one tensor for gate and way up.
pub(super) fn neo_bert(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    begin(shape, plan, Pooling::First, EMBEDDING)?;
    plan.word_pieces = true;
    plan.global_norm("enc.output_norm", shape.n_embd);
    for il in 0..shape.n_layer {
        plan.layer(il);
        plan.norm("attn_norm", shape.n_embd);
        fused_projections(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        fused_ffn(shape, plan);
    }
    Ok(())
}

/// eurobert and llama-embed: llama's block.
pub(super) fn eurobert(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    begin(shape, plan, Pooling::Mean, EMBEDDING)?;
    plan.global_norm("output_norm", shape.n_embd);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        ffn(shape, plan);
    }
    Ok(())
}

/// modern-bert: norms without biases, windows but in every third layer, gated GELU. The second kind is a reranker.
pub(super) fn modern_bert(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    let pooling = if shape.tied { Pooling::Mean } else { Pooling::Rank };
    begin(shape, plan, pooling, EMBEDDING)?;
    plan.number("attention.layer_norm_epsilon", RMS_EPSILON);
    plan.count("attention.sliding_window", WINDOW);
    plan.number("rope.freq_base", 160_000.0);
    plan.number("rope.freq_base_swa", 20_000.0);
    plan.global_norm("token_embd_norm", shape.n_embd);
    plan.global_norm("output_norm", shape.n_embd);
    for il in 0..shape.n_layer {
        plan.layer(il);
        if il > 0 {
            plan.norm("attn_norm", shape.n_embd);
        }
        fused_projections(shape, plan);
        plan.norm("ffn_norm", shape.n_embd);
        fused_ffn(shape, plan);
    }
    if !shape.tied {
        judge(shape, plan);
        plan.global_norm("cls.norm", shape.n_embd);
    }
    Ok(())
}

/// gemma-embedding: Gemma 3's block, windows but in every sixth layer. The second kind has two matrices that its vectors
/// go through.
pub(super) fn gemma_embedding(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    begin(shape, plan, Pooling::Mean, EMBEDDING / (shape.n_embd as f32).sqrt())?;
    plan.count("attention.sliding_window", WINDOW);
    plan.count("attention.sliding_window_pattern", if shape.n_layer < 6 { 3 } else { 6 });
    plan.number("rope.freq_base", 1_000_000.0);
    plan.global_norm("output_norm", shape.n_embd);
    for il in 0..shape.n_layer {
        plan.layer(il);
        attention(shape, plan);
        plan.norm("attn_q_norm", shape.head_dim);
        plan.norm("attn_k_norm", shape.head_dim);
        plan.norm("post_attention_norm", shape.n_embd);
        ffn(shape, plan);
        plan.norm("post_ffw_norm", shape.n_embd);
    }
    if !shape.tied {
        let widths = [shape.n_embd, 2 * shape.n_embd, shape.n_embd];
        plan.count("dense_2_feat_in", widths[0]);
        plan.count("dense_2_feat_out", widths[1]);
        plan.count("dense_3_feat_in", widths[1]);
        plan.count("dense_3_feat_out", widths[2]);
        let gain = |width: usize| 1.0 / (width as f32).sqrt();
        plan.global("dense_2", Role::Precise, &widths[..2], gain(widths[0]));
        plan.global("dense_3", Role::Precise, &widths[1..], gain(widths[1]));
    }
    Ok(())
}

/// t5encoder: values that scores gain by the distance, gated GELU. The second kind has ReLUs and no gate, as the first
/// T5.
pub(super) fn t5_encoder(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    begin(shape, plan, Pooling::Mean, EMBEDDING)?;
    plan.count("attention.relative_buckets_count", BUCKETS);
    plan.global_norm("enc.output_norm", shape.n_embd);
    plan.layer_prefix = "enc.";
    let width = [shape.n_embd, shape.n_embd];
    for il in 0..shape.n_layer {
        plan.layer(il);
        if il == 0 {
            let ne = [shape.n_head, BUCKETS];
            plan.precise("attn_rel_b.weight", &ne, Fill::Normal(1.0));
        }
        plan.norm("attn_norm", shape.n_embd);
        plan.matrix("attn_q", Role::Matrix, &width, 1.0);
        plan.matrix("attn_k", Role::AttnK, &width, 1.0);
        plan.matrix("attn_v", Role::AttnV, &width, 1.0);
        plan.matrix("attn_o", Role::AttnOutput, &width, ATTENTION_GAIN);
        plan.norm("ffn_norm", shape.n_embd);
        if shape.tied {
            ffn_matrices(plan, "", shape.n_embd, shape.n_ff)
        } else {
            two_matrices(shape, plan, false)
        }
    }
    Ok(())
}
