//! Reads what metadata say about multi-head latent attention, under the keys that its architectures share.

use brigade_spec::{MlaSpec, ModelError, Rotation};

use super::hparams::Hparams;

/// Elements of a head's key that are rotated.
const N_PE: &str = "rope.dimension_count";

/// The block of layer `il` with scale 1/sqrt(width of a head's key), not rotated, though a part of each head may be.
///
/// Files with split matrices name the widths of a head `*_mla`, and have those of the cached row under
/// the usual keys; older ones have the widths of a head there.
pub(crate) fn read(hp: &Hparams<'_>, il: usize, eps: f32) -> Result<MlaSpec, ModelError> {
    match read_any(hp, il, eps)? {
        MlaSpec { n_pe: 0, n_nope, .. } => {
            let problem = format!("is 0 of a head's {n_nope}; both of its parts must be there");
            Err(hp.bad(N_PE, &problem))
        }
        spec => Ok(spec),
    }
}

/// As [`read`], and takes heads without rotated elements.
pub(crate) fn read_any(hp: &Hparams<'_>, il: usize, eps: f32) -> Result<MlaSpec, ModelError> {
    let n_head = hp.need_per_layer("attention.head_count")?[il];
    let split = hp.u32("attention.key_length_mla")?;
    let key = match split {
        Some(n) if n > 0 => n,
        _ => hp.need_u32("attention.key_length")?,
    } as usize;
    let head_dim_v = match hp.u32("attention.value_length_mla")? {
        Some(n) if n > 0 => n as usize,
        _ => hp.head_dims(n_head)?.1,
    };
    let kv_rank = hp.need_u32("attention.kv_lora_rank")? as usize;
    let n_pe = hp.need_u32(N_PE)? as usize;
    if n_head == 0 || head_dim_v == 0 || kv_rank == 0 {
        return Err(hp.bad("attention.kv_lora_rank", "heads and their rank must not be empty"));
    }
    if n_pe >= key {
        let problem = format!("is {n_pe} of a head's {key}; both of its parts must be there");
        return Err(hp.bad(N_PE, &problem));
    }
    let q_rank = if hp.has_tensor(&format!("blk.{il}.attn_q_a.weight")) {
        Some(hp.need_u32("attention.q_lora_rank")? as usize).filter(|&rank| rank > 0)
    } else {
        None
    };
    Ok(MlaSpec {
        n_head,
        q_rank,
        kv_rank,
        n_nope: key - n_pe,
        n_pe,
        head_dim_v,
        scale: 1.0 / (key as f32).sqrt(),
        rotation: Rotation::None,
        pe_norm: false,
        window: None,
        eps,
        gate: None,
        sinks: false,
        temperature: None,
        chosen: None,
    })
}
