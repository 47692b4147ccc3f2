//! `mamba2`: a residual stack of Mamba-2 mixers, without FFNs.

use brigade_spec::{BlockKind, BlockSpec, LayerSpec, ModelError, ModelSpec};

use crate::read::{Hparams, mamba2, model};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.need_f32("attention.layer_norm_rms_epsilon")?;
    let layer = |il| {
        let kind = BlockKind::Mamba2(mamba2::mixer(hp, il, eps)?);
        let norm = "attn_norm.weight";
        let block = BlockSpec::new(norm, eps, kind);
        Ok(LayerSpec { blocks: vec![block] })
    };
    model::usual(hp, (0..hp.n_layer()).map(layer).collect::<Result<_, ModelError>>()?, eps)
}
