//! `phi3` (Phi-3, Phi-3.5, Phi-4). It has one tensor for queries, keys and values, and one for the FFN's gate
//! and way up. It rotates whole heads or a part of them, some models with longrope. The windows of old files
//! are ignored, as llama.cpp does.

use super::decoder::{self, FFN_NORM};
use super::{BlockKind, Hparams, MlpSpec, ModelSpec};
use crate::error::ModelError;
use crate::kernels::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let ffn = MlpSpec { fused: true, ..MlpSpec::swiglu(decoder::n_ff(hp, il)?) };
        Ok(decoder::layer(eps, decoder::attention(hp, il)?, FFN_NORM, BlockKind::Mlp(ffn)))
    };
    decoder::model(hp, eps, decoder::rope_with_factors(hp, RopeLayout::Neox)?, layer)
}
