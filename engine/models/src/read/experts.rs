//! Reads what metadata say about a layer's experts, under the keys that all architectures share.

use brigade_spec::{ModelError, MoeSpec, Router};

use super::hparams::Hparams;
use brigade_shapes::ExpertGroups;

/// The experts of layer `il` as [`MoeSpec::new`] has them, with their groups. `default_n_ff` is their
/// width, given the number a token uses, where `expert_feed_forward_length` is missing.
pub(crate) fn read(
    hp: &Hparams<'_>,
    il: usize,
    default_n_ff: impl Fn(usize) -> usize,
) -> Result<MoeSpec, ModelError> {
    let n_expert = hp.need_u32("expert_count")? as usize;
    let n_used = hp.need_per_layer("expert_used_count")?[il];
    if n_used == 0 || n_used > n_expert {
        return Err(hp.bad("expert_used_count", &format!("{n_used} of {n_expert} experts")));
    }
    let n_ff = match hp.per_layer("expert_feed_forward_length")? {
        Some(per_layer) => per_layer[il],
        None => default_n_ff(n_used),
    };
    if n_ff == 0 {
        return Err(hp.bad("expert_feed_forward_length", "must be positive"));
    }
    let groups = groups(hp, n_expert, n_used)?;
    Ok(MoeSpec { groups, ..MoeSpec::new(n_expert, n_used, n_ff) })
}

/// Whether a bias takes part in the choice of layer `il`'s experts.
pub(crate) fn has_selection_bias(hp: &Hparams<'_>, il: usize) -> bool {
    ["exp_probs_b", "exp_probs_b.bias"]
        .iter()
        .any(|name| hp.has_tensor(&format!("blk.{il}.{name}")))
}

/// `expert_group_count` and `expert_group_used_count`; one group, or none, is no restriction.
fn groups(
    hp: &Hparams<'_>,
    n_expert: usize,
    n_used: usize,
) -> Result<Option<ExpertGroups>, ModelError> {
    let count = hp.u32("expert_group_count")?.unwrap_or(0) as usize;
    if count <= 1 {
        return Ok(None);
    }
    if !n_expert.is_multiple_of(count) {
        let problem = format!("{n_expert} experts do not make {count} groups");
        return Err(hp.bad("expert_group_count", &problem));
    }
    let used = hp.need_u32("expert_group_used_count")? as usize;
    if used > count || used * (n_expert / count) < n_used {
        let problem = format!("{used} of {count} groups cannot give {n_used} experts");
        return Err(hp.bad("expert_group_used_count", &problem));
    }
    Ok(Some(ExpertGroups { count, used }))
}

impl Hparams<'_> {
    /// `expert_gating_func`; `None` where it is missing or 0.
    ///
    /// # Errors
    /// A function that no block computes.
    pub fn expert_router(&self) -> Result<Option<Router>, ModelError> {
        match self.u32("expert_gating_func")?.unwrap_or(0) {
            0 => Ok(None),
            1 => Ok(Some(Router::Softmax)),
            2 => Ok(Some(Router::Sigmoid)),
            4 => Ok(Some(Router::SqrtSoftplus)),
            other => Err(ModelError::Unsupported(format!("expert gating function {other}"))),
        }
    }

    /// `expert_weights_scale`, where 0 and a missing key mean 1.
    ///
    /// # Errors
    /// The key is not a number.
    pub fn expert_weights_scale(&self) -> Result<f32, ModelError> {
        Ok(self.f32("expert_weights_scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0))
    }
}
