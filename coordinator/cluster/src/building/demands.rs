//! What a model and its options ask: of each worker, and of the plan.

use brigade_engine::kernels::KV_PAGE;
use brigade_line::model::Model;
use brigade_plan::{Keep, PlanSettings};
use brigade_proto::capability::Requirements;

use crate::config::StageOptions;

/// The capabilities that a model and a run require of every worker.
pub fn requirements(model: &Model, options: &StageOptions) -> Requirements {
    let mut quant_types: Vec<String> =
        model.gguf.tensors().iter().map(|t| t.ty.to_string()).collect();
    quant_types.sort_unstable();
    quant_types.dedup();
    Requirements {
        architecture: model.spec.arch.clone(),
        quant_types,
        wire_type: options.wire_type,
        kv_type: options.kv_type,
        kernels: options.kernels.clone(),
        adapters: !model.gguf.adapters().is_empty(),
        control_vectors: model.control_vectors.is_some(),
    }
}

/// The planner's settings for this line.
pub fn settings(model: &Model, options: &StageOptions) -> PlanSettings {
    let windows = !options.full_windows && model.gains_by_windows(options.ctx, options.max_rows);
    PlanSettings {
        ctx: model.ctx(options.ctx),
        share_ctx: model.least_ctx(options.ctx),
        least_ctx: options.ctx.or(options.least_ctx).unwrap_or_else(|| model.least_ctx(None)),
        max_seqs: options.max_seqs,
        keep: keep(model, options, windows),
        windows,
        block_positions: KV_PAGE as u32,
        max_rows: options.max_rows,
        prompt_per_generated: options.balance.prompt_per_generated(),
        checkpoint: options.checkpoint,
        ..PlanSettings::default()
    }
}

/// What is kept for later requests.
pub fn keep(model: &Model, options: &StageOptions, windows: bool) -> Keep {
    model.keep(options.keep, options.max_seqs, windows)
}
