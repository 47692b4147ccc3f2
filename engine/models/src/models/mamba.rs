//! `mamba`: a residual stack of Mamba mixers and nothing else. FalconMamba also norms Δ, B and C, without
//! weights (`ssm.dt_b_c_rms`).

use brigade_spec::{BlockKind, BlockSpec, LayerSpec, MambaNorms, MambaSpec, ModelError, ModelSpec};

use crate::read::{Hparams, model};
use brigade_shapes::MAX_CONV_TAPS;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.need_f32("attention.layer_norm_rms_epsilon")?;
    let norms = hp.bool("ssm.dt_b_c_rms")?.unwrap_or(false);
    let norms = norms.then_some(MambaNorms { eps, weighted: false });
    let block = BlockSpec::new("attn_norm.weight", eps, BlockKind::Mamba(mixer(hp, norms)?));
    model::usual(hp, vec![LayerSpec { blocks: vec![block] }; hp.n_layer()], eps)
}

/// The sizes of a Mamba mixer from `ssm.*`.
pub(super) fn mixer(hp: &Hparams<'_>, norms: Option<MambaNorms>) -> Result<MambaSpec, ModelError> {
    let size = |key: &str| match hp.need_u32(key)? as usize {
        0 => Err(hp.bad(key, "must be positive")),
        n => Ok(n),
    };
    let spec = MambaSpec {
        d_inner: size("ssm.inner_size")?,
        n_state: size("ssm.state_size")?,
        dt_rank: size("ssm.time_step_rank")?,
        conv_taps: size("ssm.conv_kernel")?,
        norms,
    };
    if !(2..=MAX_CONV_TAPS).contains(&spec.conv_taps) {
        return Err(hp.bad("ssm.conv_kernel", &format!("must be in 2..={MAX_CONV_TAPS}")));
    }
    Ok(spec)
}
