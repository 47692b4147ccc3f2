//! `minimax-m3`: norms of each head, NEOX rotation of a part of each head, gpt-oss's activation. The first layers have a
//! dense FFN and attend to all before a row. The others have experts beside shared ones, and MiniMax Sparse Attention: an
//! index chooses the blocks of positions that a row attends to, for each head of keys and values.
//!
//! llama.cpp computes this attention with flash attention alone; without it all layers attend to all positions there.

use brigade_spec::{
    Activation, AttentionSpec, BlockIndexSpec, BlockKind, BlockScoring, MaskSpec, ModelError,
    ModelSpec, MoeSpec, QkNorm, RopeSpec, Router, SharedExpertSpec,
};

use super::gpt_oss;
use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder};
use brigade_shapes::{BlockSizes, RopeLayout};

const ACTIVATION: Activation = Activation::ClampedSwiGlu(gpt_oss::CLAMP);

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let n_dense = decoder::n_dense(hp)?;
    let index = index(hp, &rope, eps)?;
    let layer = |il: usize| {
        let attention = decoder::attention(hp, il)?;
        let is_dense = il < n_dense;
        if !is_dense {
            check_heads(hp, il, attention.n_kv_head)?;
        }
        let attention = AttentionSpec {
            qk_norm: Some(QkNorm::heads(eps)),
            output_bias: false,
            mask: MaskSpec { index: (!is_dense).then_some(index), ..attention.mask },
            ..attention
        };
        let ffn = if is_dense {
            decoder::dense(hp, il, ACTIVATION)?
        } else {
            BlockKind::Moe(experts(hp, il)?)
        };
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, rope.clone(), layer)
}

/// The index of the layers that have one.
fn index(hp: &Hparams<'_>, rope: &RopeSpec, eps: f32) -> Result<BlockIndexSpec, ModelError> {
    let size = |name: &str| {
        let key = format!("attention.indexer.{name}");
        match hp.need_u32(&key)? as usize {
            0 => Err(hp.bad(&key, "must be positive")),
            n => Ok(n),
        }
    };
    let (positions, per_row, head_dim) = (size("block_size")?, size("top_k")?, size("key_length")?);
    const NEWEST: &str = "attention.indexer.local_blocks";
    let newest = hp.need_u32(NEWEST)? as usize;
    if newest > per_row {
        let problem = format!("is {newest}, of {per_row} blocks that a row attends to (top_k)");
        return Err(hp.bad(NEWEST, &problem));
    }
    if head_dim < rope.n_rot {
        let problem =
            format!("is {head_dim}; rope.dimension_count rotates {} of its elements", rope.n_rot);
        return Err(hp.bad("attention.indexer.key_length", &problem));
    }
    let sizes = BlockSizes { positions, per_row, newest };
    Ok(BlockIndexSpec { head_dim, sizes, eps, scoring: BlockScoring::BestPosition })
}

/// The index has a query for each head of keys and values.
fn check_heads(hp: &Hparams<'_>, il: usize, n_kv_head: usize) -> Result<(), ModelError> {
    const KEY: &str = "attention.indexer.head_count";
    match hp.need_u32(KEY)? as usize {
        n if n == n_kv_head => Ok(()),
        n => {
            Err(hp
                .bad(KEY, &format!("is {n}; layer {il} has {n_kv_head} heads of keys and values")))
        }
    }
}

fn experts(hp: &Hparams<'_>, il: usize) -> Result<MoeSpec, ModelError> {
    let experts = decoder::deepseek_experts(hp, il, Router::Sigmoid, None)?;
    let shared = experts.shared.as_ref().map(|s| SharedExpertSpec::new(s.mlp.n_ff, ACTIVATION));
    Ok(MoeSpec { activation: ACTIVATION, selection_bias: true, shared, ..experts })
}

#[cfg(test)]
mod tests {
    use crate::headers::{SMALL, refusal};

    fn refused(index: [u32; 5], n_rot: u32) -> String {
        let [head_count, key_length, block_size, top_k, local_blocks] = index;
        let counts = [
            ("rope.dimension_count", n_rot),
            ("leading_dense_block_count", 1),
            ("expert_count", 8),
            ("expert_used_count", 3),
            ("expert_feed_forward_length", 16),
            ("attention.indexer.head_count", head_count),
            ("attention.indexer.key_length", key_length),
            ("attention.indexer.block_size", block_size),
            ("attention.indexer.top_k", top_k),
            ("attention.indexer.local_blocks", local_blocks),
        ];
        let counts = [&SMALL[..], &counts].concat();
        refusal("minimax-m3", &counts, &[("attention.layer_norm_rms_epsilon", 1e-5)])
    }

    #[test]
    fn an_index_that_does_not_fit_is_refused_by_its_key() {
        for (index, n_rot, key, problem) in [
            ([4, 16, 8, 3, 1], 8, "head_count", "layer 1 has 2 heads of keys and values"),
            ([2, 16, 0, 3, 1], 8, "block_size", "must be positive"),
            ([2, 16, 8, 0, 0], 8, "top_k", "must be positive"),
            ([2, 16, 8, 3, 4], 8, "local_blocks", "is 4, of 3 blocks"),
            ([2, 8, 8, 3, 1], 16, "key_length", "rotates 16 of its elements"),
        ] {
            let message = refused(index, n_rot);
            let key = format!("minimax-m3.attention.indexer.{key}");
            assert!(message.contains(&key) && message.contains(problem), "{message}");
        }
    }
}
