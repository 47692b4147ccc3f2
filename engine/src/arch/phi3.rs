//! `phi3` (Phi-3, Phi-3.5, Phi-4): one tensor for queries, keys and values, one for gate and way up, rotation
//! of whole heads or a part, longrope. Windows of old files are not kept, as llama.cpp does not.

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
