//! `qwen2`, `qwen3` and `qwen3moe`: NEOX rotation without tensors of factors. qwen2 has biases on q, k and v.
//! The other two instead norm each head of q and k before the rotation.

use super::transformer::{self, Family};
use super::{Hparams, ModelSpec};
use crate::error::ModelError;
use crate::kernels::RopeLayout;

const QWEN2: Family = Family {
    layout: RopeLayout::Neox,
    rope_factors: false,
    qk_norm: false,
    shared_expert: false,
    granite_scales: false,
    mamba2: false,
};

const QWEN3: Family = Family { qk_norm: true, ..QWEN2 };

pub(super) fn describe_qwen2(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    transformer::describe(hp, &QWEN2)
}

pub(super) fn describe_qwen3(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    transformer::describe(hp, &QWEN3)
}

/// As qwen3, with experts in every layer.
pub(super) fn describe_qwen3moe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    if hp.u32("expert_count")?.unwrap_or(0) == 0 {
        return Err(hp.bad("expert_count", "must be positive for qwen3moe"));
    }
    transformer::describe(hp, &QWEN3)
}
