//! `granite` and `granitehybrid`. granite is llama's block with four scales (embedding, residual, attention,
//! logits), and a switch that leaves the rotation out. granitehybrid has Mamba-2 mixers in layers without KV
//! heads.

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
    mamba2: false,
};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    if hp.f32("logit_scale")?.unwrap_or(0.0) <= 0.0 {
        return Err(hp.bad("logit_scale", "must be present and positive for granite"));
    }
    transformer::describe(hp, &FAMILY)
}

pub(super) fn describe_hybrid(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    transformer::describe(hp, &Family { mamba2: true, ..FAMILY })
}
