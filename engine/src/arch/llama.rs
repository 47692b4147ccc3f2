//! `llama` and what calls itself so: Mistral, Mixtral (experts), SmolLM, TinyLlama and many others.
//! NORM rotation; llama 3 scaling arrives as a tensor of factors; biases are taken where present.

use super::transformer::{self, Family};
use super::{Hparams, ModelSpec};
use crate::error::ModelError;
use crate::kernels::RopeLayout;

const FAMILY: Family = Family {
    layout: RopeLayout::Norm,
    rope_factors: true,
    qk_norm: false,
    shared_expert: false,
    granite_scales: false,
    mamba2: false,
};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    transformer::describe(hp, &FAMILY)
}
