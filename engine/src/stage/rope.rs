//! The rotation of a stage's queries and keys, with what its file has for it.

use crate::kernels::{RopeParams, Yarn};
use crate::spec::{ModelError, RopeSpec};
use crate::weights::WeightLoader;

/// The rotation with the factors that apply for this context; the other of longrope's two tensors
/// counts as taken.
pub(super) fn load_rope(
    rope: Option<&RopeSpec>,
    n_ctx: u32,
    loader: &mut WeightLoader<'_>,
) -> Result<Option<RopeParams>, ModelError> {
    let Some(rope) = rope else { return Ok(None) };
    let mut freq_factors = None;
    if let Some(factors) = rope.factors {
        for other in ["rope_factors_long.weight", "rope_factors_short.weight"] {
            if loader.has(other) {
                loader.reference(other, &[rope.n_factors])?;
            }
        }
        let mut values = loader.vector(factors.tensor(n_ctx), rope.n_factors)?.into_vec();
        values.truncate(rope.n_rot / 2);
        freq_factors = Some(values);
    }
    if !rope.still.is_empty() {
        // Divided by infinity, a position is 0.
        let factors = freq_factors.get_or_insert_with(|| vec![1.0; rope.n_rot / 2]);
        rope.still.iter().for_each(|&pair| factors[pair] = f32::INFINITY);
    }
    Ok(Some(RopeParams {
        layout: rope.layout,
        n_rot: rope.n_rot,
        freq_base: rope.freq_base,
        freq_scale: rope.freq_scale,
        freq_factors,
        attn_factor: rope.attn_factor,
        yarn: rope.yarn.as_ref().map(|yarn| Yarn {
            ext_factor: 1.0,
            beta_fast: yarn.beta_fast,
            beta_slow: yarn.beta_slow,
            n_ctx_orig: yarn.n_ctx_orig,
        }),
    }))
}
