//! Reads what metadata say about passes through a model's layers.

use brigade_spec::{LoopSpec, ModelError, StackSpec};

use super::hparams::Hparams;

/// Most layers that passes may make of a file's: as many as llama.cpp can have.
const MAX_PASSED_LAYERS: usize = 512;

/// The passes that `num_loops` counts, each through all layers of the file.
///
/// # Errors
/// There are no passes, or more than a model can have.
pub(crate) fn read_loop(hp: &Hparams<'_>) -> Result<(LoopSpec, usize), ModelError> {
    const KEY: &str = "num_loops";
    let loops = hp.u32(KEY)?.unwrap_or(1) as usize;
    let in_file = hp.n_layer();
    let n_layer = checked(hp, KEY, &[in_file, loops])?;
    let normed = !hp.bool("skip_loop_final_norm")?.unwrap_or(false);
    Ok((LoopSpec { in_file, normed }, n_layer))
}

/// The keys of the stacks.
///
/// # Errors
/// One is missing or 0, or they make another number of layers than `block_count` says.
pub(crate) fn read_stacks(hp: &Hparams<'_>) -> Result<StackSpec, ModelError> {
    let need = |key| Ok::<_, ModelError>(hp.need_u32(key)? as usize);
    let [per_stack, cycles, low] =
        [need("hrm.layers_per_stack")?, need("hrm.h_cycles")?, need("hrm.l_cycles")?];
    let passes = low.checked_add(1).filter(|_| low > 0).unwrap_or(0);
    let n_layer = checked(hp, "hrm.layers_per_stack", &[per_stack, cycles, passes])?;
    if n_layer != hp.n_layer() {
        let problem = format!(
            "is {}, and {cycles} cycles of {low} + 1 passes through {per_stack} layers are {n_layer}",
            hp.n_layer()
        );
        return Err(hp.bad("block_count", &problem));
    }
    Ok(StackSpec { per_stack, low, cycles })
}

/// The product of counts, which makes the layers of a model.
fn checked(hp: &Hparams<'_>, key: &str, counts: &[usize]) -> Result<usize, ModelError> {
    let product = counts.iter().try_fold(1_usize, |product, &n| product.checked_mul(n));
    match product {
        Some(n @ 1..=MAX_PASSED_LAYERS) => Ok(n),
        _ => {
            let problem = format!(
                "makes {counts:?} multiplied layers of a model; they must be 1 to {MAX_PASSED_LAYERS}"
            );
            Err(hp.bad(key, &problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::headers;

    #[test]
    fn passes_that_make_no_model_are_refused_by_their_key() {
        let base = [("block_count", 64), ("embedding_length", 32)];
        let refusal = |arch: &str, more: &[(&str, u32)]| {
            headers::refusal(
                arch,
                &[&base[..], more].concat(),
                &[("attention.layer_norm_rms_epsilon", 1e-5)],
            )
        };
        for loops in [0, 9, u32::MAX] {
            let why = refusal("nanbeige", &[("num_loops", loops)]);
            assert!(why.contains("nanbeige.num_loops") && why.contains("512"), "{why}");
        }
        let stacks = |n: [u32; 3]| {
            let keys = ["hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles"];
            refusal("hrm_text", &keys.into_iter().zip(n).collect::<Vec<_>>())
        };
        assert!(stacks([16, 2, 0]).contains("hrm_text.hrm.layers_per_stack"));
        assert!(stacks([0, 2, 1]).contains("hrm_text.hrm.layers_per_stack"));
        assert!(stacks([u32::MAX; 3]).contains("hrm_text.hrm.layers_per_stack"));
        let why = stacks([8, 2, 1]);
        assert!(why.contains("hrm_text.block_count") && why.contains("are 32"), "{why}");
    }
}
