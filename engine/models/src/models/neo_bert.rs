//! `neo-bert`: RMS norms before the blocks, one tensor for queries, keys and values, and one for gate and way up.

use brigade_spec::{BlockKind, HeadSpec, MlpSpec, ModelError, ModelSpec, Rotation};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder, encoder};
use brigade_shapes::RopeLayout;

/// The norm behind the layers.
pub(super) const LAST_NORM: &str = "enc.output_norm.weight";

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let attention = encoder::attention(hp, il, Rotation::Model)?;
        let ffn = MlpSpec { fused: true, ..MlpSpec::swiglu(decoder::n_ff(hp, il)?) };
        Ok(decoder::layer(eps, attention, FFN_NORM, BlockKind::Mlp(ffn)))
    };
    let spec = decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Norm)?, layer)?;
    Ok(ModelSpec { head: HeadSpec { norm: Some(LAST_NORM), ..spec.head.clone() }, ..spec })
}
