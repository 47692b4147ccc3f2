//! `apertus`: norms of each head of q and k, and FFNs with xIELU, whose constants are each layer's own. (arXiv
//! 2509.14233.)

use brigade_gguf::GgufError;
use brigade_spec::{Activation, AttentionSpec, ModelError, ModelSpec, QkNorm};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder};
use brigade_shapes::{RopeLayout, Xielu};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let activations = activations(hp)?;
    let layer = |il: usize| {
        let qk_norm = Some(QkNorm::heads(eps));
        let attention = AttentionSpec { qk_norm, ..decoder::attention(hp, il)? };
        let ffn = decoder::dense(hp, il, Activation::Xielu(activations[il]))?;
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, decoder::rope_with_factors(hp, RopeLayout::Neox)?, layer)
}

/// The activation of each layer. Files have its factors before the softplus that keeps them positive.
fn activations(hp: &Hparams<'_>) -> Result<Vec<Xielu>, ModelError> {
    let list = |key: &str| {
        let missing =
            || GgufError::MissingKey { key: key.to_owned(), wanted: "f32 or array of f32" };
        hp.f32_per_layer_of(key)?.ok_or_else(|| ModelError::from(missing()))
    };
    let (alpha_n, alpha_p) = (list("xielu.alpha_n")?, list("xielu.alpha_p")?);
    let (beta, eps) = (list("xielu.beta")?, list("xielu.eps")?);
    let softplus = |x: f32| libm::log1p(libm::exp(f64::from(x))) as f32;
    let of_layer = |il: usize| Xielu {
        alpha_n: beta[il] + softplus(alpha_n[il]),
        alpha_p: softplus(alpha_p[il]),
        beta: beta[il],
        eps: eps[il],
    };
    Ok((0..hp.n_layer()).map(of_layer).collect())
}
