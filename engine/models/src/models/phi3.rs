//! `phi3` (Phi-3, Phi-3.5, Phi-4) and `phimoe` (Phi-3.5-MoE).
//!
//! phi3 has one tensor for queries, keys and values, which `decoder::attention` finds, and one for the FFN's gate and up
//! projection. It rotates whole heads or a part of them, some models with longrope. A window that a file names
//! (`attention.sliding_window`) is not read: llama.cpp ignores it too. phimoe has experts, and biases, which
//! `decoder::attention` finds. Its norms are RMS norms with a bias, as in llama.cpp.

use brigade_spec::{BlockKind, MlpSpec, ModelError, ModelSpec, MoeSpec, NormKind, Skeleton};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let ffn = MlpSpec { fused: true, ..MlpSpec::swiglu(decoder::n_ff(hp, il)?) };
        Ok(decoder::layer(eps, decoder::attention(hp, il)?, FFN_NORM, BlockKind::Mlp(ffn)))
    };
    decoder::model(hp, eps, decoder::rope_with_factors(hp, RopeLayout::Neox)?, layer)
}

pub(super) fn describe_moe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        // A file without a width of experts has that of dense layers. `experts::read` refuses 0.
        let experts = experts::read(hp, il, |_| decoder::n_ff(hp, il).unwrap_or(0))?;
        let weights_scale = hp.expert_weights_scale()?;
        // The model has no groups of experts, whatever the file says.
        let ffn = BlockKind::Moe(MoeSpec { weights_scale, groups: None, ..experts });
        Ok(decoder::layer(eps, decoder::attention(hp, il)?, FFN_NORM, ffn))
    };
    let spec = decoder::model(hp, eps, decoder::rope_with_factors(hp, RopeLayout::Neox)?, layer)?;
    let skeleton = Skeleton { norm: NormKind::RmsBiased, ..spec.skeleton.clone() };
    Ok(ModelSpec { skeleton, ..spec })
}
