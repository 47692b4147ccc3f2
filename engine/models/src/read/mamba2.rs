//! Reads the keys `ssm.*` of Mamba-2 mixers, which hybrid models have too.

use brigade_spec::{Mamba2Spec, ModelError};

use super::hparams::Hparams;
use brigade_shapes::{MAX_CONV_TAPS, SsdShape};

/// The mixer of layer `il`; normed by groups where the file has the norm's weights.
pub(crate) fn mixer(hp: &Hparams<'_>, il: usize, eps: f32) -> Result<Mamba2Spec, ModelError> {
    let n_group = hp.need_u32("ssm.group_count")? as usize;
    let mixer = mixer_of_groups(hp, n_group)?;
    let normed = hp.has_tensor(&format!("blk.{il}.ssm_norm.weight"));
    Ok(Mamba2Spec { norm_eps: normed.then_some(eps), ..mixer })
}

/// A mixer whose heads share B and C in `n_group` groups, without a norm.
pub(crate) fn mixer_of_groups(hp: &Hparams<'_>, n_group: usize) -> Result<Mamba2Spec, ModelError> {
    let size = |key| Ok::<_, ModelError>(hp.need_u32(key)? as usize);
    let (n_inner, n_state) = (size("ssm.inner_size")?, size("ssm.state_size")?);
    let (n_head, conv_taps) = (size("ssm.time_step_rank")?, size("ssm.conv_kernel")?);
    if n_inner == 0 || n_head == 0 || !n_inner.is_multiple_of(n_head) {
        return Err(hp.bad("ssm.inner_size", &format!("{n_inner} channels in {n_head} heads")));
    }
    if n_group == 0 || !n_head.is_multiple_of(n_group) {
        return Err(hp.bad("ssm.group_count", &format!("{n_head} heads in {n_group} groups")));
    }
    if n_state == 0 {
        return Err(hp.bad("ssm.state_size", "must be positive"));
    }
    if !(2..=MAX_CONV_TAPS).contains(&conv_taps) {
        return Err(hp.bad("ssm.conv_kernel", &format!("must be 2 to {MAX_CONV_TAPS}")));
    }
    let shape = SsdShape { n_head, head_dim: n_inner / n_head, n_state, n_group };
    Ok(Mamba2Spec { shape, conv_taps, norm_eps: None, low_rank: None })
}
