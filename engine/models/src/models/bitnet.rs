//! `bitnet` (BitNet b1.58): llama's block with norms inside attention and FFN, each before the way back, and NEOX
//! rotation. The output matrix is the embedding. (arXiv 2402.17764.)

use brigade_spec::{AttentionSpec, BlockKind, HeadOutputSpec, MlpSpec, ModelError, ModelSpec};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let head_output = HeadOutputSpec { sub_norm: Some(eps), gate: None };
        let attention = AttentionSpec { head_output, ..decoder::attention(hp, il)? };
        let ffn = MlpSpec { sub_norm: Some(eps), ..MlpSpec::swiglu(decoder::n_ff(hp, il)?) };
        Ok(decoder::layer(eps, attention, FFN_NORM, BlockKind::Mlp(ffn)))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}
