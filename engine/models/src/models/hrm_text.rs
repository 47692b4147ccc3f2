//! `hrm_text`: two stacks of layers, low and high, which run by turns ([`StackSpec`](brigade_spec::StackSpec)). Norms have
//! no weights. A sigmoid of a projection of the block's input multiplies what the heads give.

use brigade_spec::{
    Activation, AttentionSpec, GateSource, HeadOutputSpec, HeadSpec, ModelError, ModelSpec,
    NormKind, Passes, Skeleton,
};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder, passes};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let stacks = passes::read_stacks(hp)?;
    hp.check_layers("hrm.layers_per_stack", 2 * stacks.per_stack)?;
    let passes = Passes::Stacks(stacks);
    let layer = |layer: usize| {
        let il = passes.in_file(layer);
        let attention = AttentionSpec {
            head_output: HeadOutputSpec::gated(GateSource::EachValue),
            output_bias: false,
            ..decoder::attention(hp, il)?
        };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    let spec = decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)?;
    let embedding_scale = hp.f32("embedding_scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0);
    let skeleton = Skeleton { norm: NormKind::RmsUnweighted, passes, ..spec.skeleton };
    Ok(ModelSpec {
        embedding_scale,
        // The last pass ends with a norm.
        head: HeadSpec { norm: None, ..spec.head },
        skeleton,
        ..spec
    })
}
