//! `arctic` (Snowflake Arctic). A dense FFN, as wide as the residual stream, follows attention. Experts read
//! what came into the layer, behind a norm of their own.

use brigade_spec::{
    AttentionSpec, BlockKind, BlockSpec, LayerSpec, MlpSpec, ModelError, ModelSpec, MoeSpec, Reads,
};

use crate::read::decoder::{ATTN_NORM, FFN_NORM};
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

/// The norm before the experts.
const EXPERTS_NORM: &str = "ffn_norm_exps.weight";

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
        let dense = BlockKind::Mlp(MlpSpec::swiglu(hp.n_embd()));
        let n_ff = decoder::n_ff(hp, il)?;
        let experts = experts::read(hp, il, |_| n_ff)?;
        let weights_scale = hp.expert_weights_scale()?;
        let experts = BlockKind::Moe(MoeSpec { n_ff, weights_scale, ..experts });
        let blocks = vec![
            BlockSpec::new(ATTN_NORM, eps, BlockKind::Attention(attention)),
            BlockSpec::new(FFN_NORM, eps, dense),
            BlockSpec { reads: Reads::LayerInput, ..BlockSpec::new(EXPERTS_NORM, eps, experts) },
        ];
        Ok(LayerSpec { blocks })
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Norm)?, layer)
}
