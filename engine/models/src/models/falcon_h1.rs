//! `falcon-h1`. In every layer, attention with NEOX rotation and a Mamba-2 mixer read the same normed rows. A
//! SwiGLU FFN follows. The model family's multipliers are already in the weights.

use brigade_spec::{
    AttentionSpec, BlockKind, BlockSpec, LayerSpec, MlpSpec, ModelError, ModelSpec, Reads, Rotation,
};

use crate::read::attention::attention_spec;
use crate::read::{Hparams, mamba2, model, rope};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.need_f32("attention.layer_norm_rms_epsilon")?;
    let n_ff = hp.need_per_layer("feed_forward_length")?;
    let layer = |il: usize| {
        let attention = AttentionSpec {
            rotation: Rotation::Model,
            output_bias: false,
            ..attention_spec(hp, il)?
        };
        if n_ff[il] == 0 {
            return Err(hp.bad("feed_forward_length", "must be positive"));
        }
        let mamba2 = BlockKind::Mamba2(mamba2::mixer(hp, il, eps)?);
        Ok(LayerSpec {
            blocks: vec![
                BlockSpec::new("attn_norm.weight", eps, BlockKind::Attention(attention)),
                BlockSpec {
                    reads: Reads::AsBefore,
                    ..BlockSpec::new("attn_norm.weight", eps, mamba2)
                },
                // Files have this one without the usual ending.
                BlockSpec::new("ffn_norm", eps, BlockKind::Mlp(MlpSpec::swiglu(n_ff[il]))),
            ],
        })
    };
    let layers = (0..hp.n_layer()).map(layer).collect::<Result<_, ModelError>>()?;
    let (head_dim, _) = hp.head_dims(hp.need_per_layer("attention.head_count")?[0])?;
    Ok(ModelSpec {
        rope: Some(rope::read(hp, RopeLayout::Neox, head_dim, false)?),
        ..model::usual(hp, layers, eps)?
    })
}
