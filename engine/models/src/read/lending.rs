//! Layers at a model's end that have no keys and values. They attend to those of the last layer before them that is of their
//! kind: with a window, or without.

use brigade_spec::{BlockKind, BlockSpec, KvFrom, ModelError, ModelSpec};

use super::decoder::Windows;
use super::hparams::Hparams;

/// Says how many they are.
const BORROWING: &str = "attention.shared_kv_layers";

/// Layers that have keys and values of their own: the first ones. Where the file does not say, there are `usual` of them.
pub(crate) fn n_own(hp: &Hparams<'_>, usual: usize) -> Result<usize, ModelError> {
    let usual = hp.n_layer().saturating_sub(usual);
    let n_borrowing = hp.u32(BORROWING)?.map_or(usual, |n| n as usize);
    match hp.n_layer().checked_sub(n_borrowing) {
        None | Some(0) => {
            let problem = format!("is {n_borrowing} of {} layers: none is left", hp.n_layer());
            Err(hp.bad(BORROWING, &problem))
        }
        Some(n_own) => Ok(n_own),
    }
}

/// Pairs of keys and values that are lent where the first `n_own` layers have some: of a layer without a window and of one
/// with.
pub(crate) fn n_lent(hp: &Hparams<'_>, n_own: usize) -> usize {
    if n_own < hp.n_layer() { 2 } else { 0 }
}

/// Source of the keys and values that layer `il` attends to, where the first `n_own` layers have some of their own.
pub(crate) fn kv_from(
    hp: &Hparams<'_>,
    windows: &Windows,
    n_own: usize,
    il: usize,
) -> Result<KvFrom, ModelError> {
    let pair = usize::from(windows.has(il));
    let lender = (0..n_own).rfind(|&layer| windows.has(layer) == windows.has(il));
    match lender {
        Some(lender) if lender == il && n_own < hp.n_layer() => Ok(KvFrom::Lent(pair)),
        Some(_) if il >= n_own => Ok(KvFrom::Borrowed(pair)),
        None => {
            let problem = format!("layer {il} finds no layer of its kind whose keys it could use");
            Err(hp.bad(BORROWING, &problem))
        }
        Some(_) => Ok(KvFrom::Own),
    }
}

/// Refuses layers whose keys and values would have another shape than those that they borrow.
pub(crate) fn check(hp: &Hparams<'_>, spec: &ModelSpec) -> Result<(), ModelError> {
    let blocks = spec.layers.iter().flat_map(|layer| &layer.blocks);
    let attention = |block: &BlockSpec| match &block.kind {
        BlockKind::Attention(a) => Some((a.kv.from, a.n_kv_head)),
        _ => None,
    };
    let all: Vec<(KvFrom, usize)> = blocks.filter_map(attention).collect();
    for (il, (kv, n_kv_head)) in all.iter().enumerate() {
        let KvFrom::Borrowed(pair) = *kv else { continue };
        let lender = all.iter().find(|(kv, _)| *kv == KvFrom::Lent(pair));
        if lender.is_some_and(|(_, n)| n != n_kv_head) {
            let problem = format!("layer {il} borrows keys of another number of heads");
            return Err(hp.bad("attention.head_count_kv", &problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::refusal;

    #[test]
    fn layers_that_nobody_lends_keys_are_refused() {
        let counts = [("block_count", 4), ("embedding_length", 64), (BORROWING, 4)];
        let numbers = [("attention.layer_norm_rms_epsilon", 1e-6)];
        let message = refusal("gemma4", &counts, &numbers);
        assert!(message.contains(BORROWING), "{message}");
    }
}
