//! `nanbeige`: llama's block in NORM layout. The file's layers are gone through several times (`num_loops`), each pass with
//! keys and values of its own. Between two passes stands the norm before the head, unless `skip_loop_final_norm`.

use brigade_spec::{Activation, ModelError, ModelSpec, Passes, Skeleton};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder, passes};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let (loops, n_layer) = passes::read_loop(hp)?;
    let layer = |il: usize| {
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(decoder::layer(eps, decoder::attention(hp, il)?, FFN_NORM, ffn))
    };
    let spec = decoder::model(hp, eps, decoder::rope_with_factors(hp, RopeLayout::Norm)?, layer)?;
    let layers = spec.layers.iter().cycle().take(n_layer).cloned().collect();
    let skeleton = Skeleton { passes: Passes::Loop(loops), ..spec.skeleton };
    Ok(ModelSpec { layers, skeleton, ..spec })
}
