//! What the log says of a line that is placed.

use std::collections::BTreeSet;

use brigade_line::handle::{LineInfo, StageInfo};
use brigade_line::model::Model;

use crate::config::StageOptions;

/// Says why a model's own blocks that draft tokens are not loaded, where it has some. Blocks that are sound are left out for
/// one reason alone: a worker that does not know them.
pub fn tell_own_drafts(model: &Model, are_loaded: bool, options: &StageOptions) {
    if let Some(why) = model.spec.own_drafts_refused.as_ref().filter(|_| options.own_drafts) {
        tracing::warn!(
            why,
            "the model's own blocks that draft tokens are not sound, and not loaded; the model runs without them"
        );
    }
    if model.spec.own_drafts.is_some() && options.own_drafts && !are_loaded {
        tracing::info!(
            "the model has blocks of its own that draft tokens; they are not loaded, because a worker of the line is of an older release: upgrade that worker to use them"
        );
    }
}

/// Says which kernel tables the workers use, where they differ, and whether these give the same bits.
pub fn tell_kernels(line: &LineInfo) {
    let of = |what: fn(&StageInfo) -> String| {
        line.stages.iter().map(what).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let (tables, numerics) = (of(|s| s.kernels.clone()), of(|s| s.numerics.to_string()));
    if numerics.len() > 1 {
        tracing::warn!(
            numerics = numerics.join(", "),
            devices = tables.join(", "),
            "the line's workers compute different bits (CPUs beside GPUs, --fast-math beside none, or different releases): answers depend on which of them has which layers"
        );
    } else if tables.len() > 1 {
        tracing::info!(
            tables = tables.join(", "),
            "workers use different kernel tables: the same results, at different speeds"
        );
    }
}
