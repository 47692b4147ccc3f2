//! `llama` and the models that call themselves so: Mistral, Mixtral (with experts), SmolLM, TinyLlama and
//! many others. They have NORM rotation. Llama 3's scaling of it comes as a tensor of factors. Biases are
//! used where a file has them.

use brigade_spec::{ModelError, ModelSpec};

use crate::read::transformer::Family;
use crate::read::{Hparams, transformer};
use brigade_shapes::RopeLayout;

const FAMILY: Family = Family {
    layout: RopeLayout::Norm,
    rope_factors: true,
    qk_norm: false,
    shared_expert: false,
    granite_scales: false,
    rotation_switch: false,
    mamba2: false,
    sections: None,
};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    transformer::describe(hp, &FAMILY)
}
