//! Synthetic models of Gemma 3n and Gemma 4, with a row for every layer and with layers that borrow keys and values.

use super::mixtures::layers;
use super::plain::{head_norms, listed_windows, mixture, projections};
use crate::Shape;
use crate::file_type::Role;
use crate::noise::Fill;
use crate::plan::ModelPlan;
use crate::shared_parts::{EMBEDDING, ffn_matrices, refuse_experts, transformer_metadata};

/// Base of layers with windows.
const LOCAL_BASE: f32 = 500.0;

/// gemma4: heads twice as wide in layers without windows, where keys are values too, norms around everything, and, with
/// experts, a dense FFN beside them. With one head of keys and no experts it is a small one, as E2B is.
pub(crate) fn gemma4(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    transformer_metadata(shape, plan);
    let (n_embd, dim) = (shape.n_embd, shape.head_dim);
    for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        plan.count(key, 2 * dim);
        plan.count(&format!("{key}_swa"), dim);
    }
    let is_small = shape.n_head_kv == 1 && shape.experts.is_none();
    let row = if is_small { n_embd / 4 } else { 0 };
    // The last layers with keys of their own are one with a window and one without.
    let n_own =
        if is_small { (shape.n_layer / 4 * 2).max(2).min(shape.n_layer) } else { shape.n_layer };
    plan.count("embedding_length_per_layer_input", row);
    plan.count("attention.shared_kv_layers", shape.n_layer - n_own);
    plan.number("rope.freq_base", 1_000_000.0);
    plan.number("rope.freq_base_swa", LOCAL_BASE);
    plan.number("final_logit_softcapping", 6.0);
    if let Some(experts) = shape.experts {
        plan.count("expert_feed_forward_length", experts.n_ff);
    }
    let windows = listed_windows(shape, plan, 2);
    plan.global_norm("rope_freqs", dim);
    if row > 0 {
        layer_rows(shape, plan, row);
    }
    layers(shape, plan, EMBEDDING / (n_embd as f32).sqrt(), |il, plan| {
        let head_dim = if windows[il] { dim } else { 2 * dim };
        let heads = &Shape { head_dim, ..shape.clone() };
        plan.norm("attn_norm", n_embd);
        projections(heads, plan);
        head_norms(heads, plan);
        // Some files have tensors that no layer reads, and some do not.
        let lacks: &[&str] = match (windows[il], il < n_own) {
            (true, _) => &[],
            (false, true) => &["attn_v"],
            (false, false) => &["attn_k", "attn_v", "attn_k_norm"],
        };
        let lacking: Vec<String> = lacks.iter().map(|t| format!("blk.{il}.{t}.weight")).collect();
        plan.tensors.retain(|tensor| !lacking.contains(&tensor.name));
        plan.norm("post_attention_norm", n_embd);
        plan.norm("ffn_norm", n_embd);
        ffn_matrices(plan, "", n_embd, shape.n_ff);
        plan.norm("post_ffw_norm", n_embd);
        if let Some(experts) = shape.experts {
            mixture(shape, plan, experts);
            for norm in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
                plan.norm(norm, n_embd);
            }
            // The router's rows are divided by the root of their width.
            let spread = Fill::Normal((n_embd as f32).sqrt());
            plan.precise("ffn_gate_inp.scale", &[n_embd], spread);
            plan.precise("ffn_down_exps.scale", &[experts.count], Fill::AroundOne(0.3));
        }
        if row > 0 {
            plan.matrix("inp_gate", Role::Matrix, &[n_embd, row], 1.0);
            plan.matrix("proj", Role::Matrix, &[row, n_embd], 1.0);
            plan.norm("post_norm", n_embd);
        }
        plan.precise("layer_output_scale.weight", &[1], Fill::AroundOne(0.3));
    });
    Ok(())
}

/// gemma3n: four streams, a way past attention, sparse gates, rows for every layer; layers from the 21st on borrow keys.
pub(crate) fn gemma3n(shape: &Shape, plan: &mut ModelPlan) -> Result<(), String> {
    refuse_experts(shape)?;
    const STREAMS: usize = 4;
    const ROW: usize = 256;
    const LAUREL: usize = 64;
    // Of a twentieth of the gates there must be more than a few: what they give is normed.
    const LEAST_FF: usize = 512;
    // Blocks give normed rows. In a stream that is not larger than these, so many of them amplify every rounding.
    const LARGE: f32 = 8.0;
    let shape = &Shape { n_ff: shape.n_ff.max(LEAST_FF), ..shape.clone() };
    transformer_metadata(shape, plan);
    let (n_embd, dim) = (shape.n_embd, shape.head_dim);
    for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        plan.count(key, dim);
    }
    plan.count("altup.num_inputs", STREAMS);
    plan.count("altup.active_idx", 0);
    plan.count("embedding_length_per_layer_input", ROW);
    plan.count("attention.shared_kv_layers", shape.n_layer.saturating_sub(20));
    plan.number("rope.freq_base", 1_000_000.0);
    plan.number("rope.freq_base_swa", LOCAL_BASE);
    listed_windows(shape, plan, 2);
    layer_rows(shape, plan, ROW);
    let streams = [n_embd, n_embd, STREAMS - 1];
    for name in ["altup_proj", "altup_unembd_proj"] {
        plan.global(name, Role::Matrix, &streams, 1.0 / (n_embd as f32).sqrt());
    }
    layers(shape, plan, LARGE * EMBEDDING / (n_embd as f32).sqrt(), |_, plan| {
        plan.norm("attn_norm", n_embd);
        projections(shape, plan);
        head_norms(shape, plan);
        plan.norm("post_attention_norm", n_embd);
        plan.norm("ffn_norm", n_embd);
        ffn_matrices(plan, "", n_embd, shape.n_ff);
        plan.norm("post_ffw_norm", n_embd);
        plan.matrix("inp_gate", Role::Matrix, &[n_embd, ROW], 1.0);
        plan.matrix("proj", Role::Matrix, &[ROW, n_embd], 1.0);
        plan.norm("post_norm", n_embd);
        plan.norm("altup_router_norm", n_embd);
        plan.norm("altup_correct_scale", n_embd);
        // What it makes is divided by its rows' width.
        plan.precise("altup_router.weight", &[n_embd, STREAMS], Fill::Normal(2.0));
        for (name, n) in
            [("altup_correct_coef", STREAMS), ("altup_predict_coef", STREAMS * STREAMS)]
        {
            plan.matrix(name, Role::Precise, &[STREAMS, n], 0.15);
        }
        plan.matrix("laurel_l", Role::Matrix, &[n_embd, LAUREL], 1.0);
        plan.matrix("laurel_r", Role::Matrix, &[LAUREL, n_embd], 1.0);
        plan.norm("laurel_post_norm", n_embd);
    });
    Ok(())
}

/// Tensors that make the rows, `row` wide, that a token has for every layer.
fn layer_rows(shape: &Shape, plan: &mut ModelPlan, row: usize) {
    let all = shape.n_layer * row;
    let deviation = 1.0 / (row as f32).sqrt();
    plan.global("per_layer_token_embd", Role::Embedding, &[all, shape.vocab], deviation);
    plan.global("per_layer_model_proj", Role::Matrix, &[shape.n_embd, all], 1.0);
    plan.global_norm("per_layer_proj_norm", row);
}
