//! `granite`: the llama block with four scales (embedding, residual, attention, logits) and a
//! switch that leaves the rotation out altogether.

use super::transformer::{self, Family};
use super::{Hparams, ModelSpec};
use crate::error::ModelError;
use crate::kernels::RopeLayout;

const FAMILY: Family = Family {
    layout: RopeLayout::Norm,
    rope_factors: true,
    qk_norm: false,
    shared_expert: true,
    granite_scales: true,
};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    if hp.f32("logit_scale")?.unwrap_or(0.0) <= 0.0 {
        return Err(hp.bad("logit_scale", "must be present and positive for granite"));
    }
    transformer::describe(hp, &FAMILY)
}
