//! `glm5-next` (GLM-5.3-Flash): a token has several streams, which a doubly stochastic matrix mixes. A layer with KV heads
//! has latent attention in which nothing is rotated; any other layer has Kimi delta attention. FFNs are deepseek2's, all
//! with bounds.
//!
//! A row of latent attention attends to pools of positions that an index chose, and to the positions behind the last pool
//! that it sees. Layers without an index attend to the pools of the one before them that has one. A block of multi-token
//! prediction at the end is left out: llama.cpp has no graph of it to compare with.

use brigade_gguf::GgufError;
use brigade_spec::{
    Beside, BlockKind, ChosenBy, ChosenSpec, HeadReads, HeadSpec, IndexSpec, KdaGates, KdaSpec,
    MlaSpec, MlpSpec, ModelError, ModelSpec, MoeSpec, OUTPUT, Rotation, Router, SharedExpertSpec,
    Skeleton, Streams,
};

use super::deepseek32::Sizes;
use super::{deepseek2, kimi_k3};
use crate::read::limits::SwiGluLimits;
use crate::read::{Hparams, hyper, mla, model};
use brigade_shapes::{GateBound, PoolSizes};

/// Epsilon of the norms that make queries and keys of delta attention as long as 1, which files do not name.
const UNIT_EPS: f32 = 1e-6;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let streams = hyper::read_mixed(hp, eps)?;
    let n_head = hp.need_per_layer("attention.head_count")?;
    let is_latent: Vec<bool> =
        hp.need_per_layer("attention.head_count_kv")?.iter().map(|n| *n > 0).collect();
    let indexes = Indexes::read(hp, &is_latent[..hp.n_layer()], streams.n - 1)?;
    let limits = Limits::read(hp)?;
    let n_dense = hp.u32("leading_dense_block_count")?.unwrap_or(0) as usize;
    let mut layers = Vec::with_capacity(hp.n_layer());
    for il in 0..hp.n_layer() {
        let mixer = if is_latent[il] {
            BlockKind::Mla(latent_attention(hp, il, eps, &indexes)?)
        } else {
            BlockKind::Kda(kda(hp, n_head[il], eps)?)
        };
        let ffn = if il < n_dense { dense(hp, il, &limits)? } else { moe(hp, il, &limits)? };
        layers.push(hyper::layer(streams, eps, mixer, ffn));
    }
    if !hp.has_tensor(OUTPUT) {
        return Err(GgufError::MissingTensor { name: OUTPUT.to_owned() }.into());
    }
    let beside = if indexes.shared { Beside::Chosen } else { Beside::Nothing };
    let skeleton = Skeleton { beside, streams: Streams::Alike(streams.n), ..Skeleton::default() };
    let head = HeadSpec { reads: HeadReads::Mean(streams.n), ..HeadSpec::usual(eps) };
    Ok(ModelSpec { skeleton, head, ..model::usual(hp, layers, eps)? })
}

/// Kimi K3's, with the gates of Kimi Linear.
fn kda(hp: &Hparams<'_>, n_head: usize, eps: f32) -> Result<KdaSpec, ModelError> {
    let (gates, unit_eps) = (KdaGates::LowRank, UNIT_EPS);
    Ok(KdaSpec { gates, unit_eps, ..kimi_k3::kda(hp, n_head, eps)? })
}

fn latent_attention(
    hp: &Hparams<'_>,
    il: usize,
    eps: f32,
    indexes: &Indexes,
) -> Result<MlaSpec, ModelError> {
    const Q_RANK: &str = "attention.q_lora_rank";
    let q_rank = match hp.need_u32(Q_RANK)? as usize {
        0 => return Err(hp.bad(Q_RANK, "must be positive")),
        rank => Some(rank),
    };
    let attention = MlaSpec { q_rank, ..mla::read_any(hp, il, eps)? };
    if attention.n_pe > 0 {
        let problem = format!("is {}, must be 0: rotated heads do not run", attention.n_pe);
        return Err(hp.bad("rope.dimension_count", &problem));
    }
    let chosen = Some(indexes.chosen(hp, il, &attention)?);
    Ok(MlaSpec { chosen, ..attention })
}

/// The layers that choose pools, and how.
struct Indexes {
    of: Sizes,
    sizes: PoolSizes,
    has: Vec<bool>,
    /// Whether layers attend to the pools of others.
    shared: bool,
    /// Number of the tensor beside the stream that has the pools: the one behind the other streams.
    place: usize,
    eps: f32,
}

impl Indexes {
    fn read(hp: &Hparams<'_>, is_latent: &[bool], place: usize) -> Result<Self, ModelError> {
        const TYPES: &str = "attention.indexer.types";
        let has: Vec<bool> = match hp.per_run_layer(TYPES)? {
            Some(types) => types.iter().map(|of| *of != 0).collect(),
            None => vec![true; is_latent.len()],
        };
        let mut of_latent = is_latent.iter().zip(&has).filter(|(is_latent, _)| **is_latent);
        let shared = of_latent.clone().any(|(_, has)| !*has);
        if of_latent.next().is_some_and(|(_, has)| !*has) {
            let problem =
                "the first layer with latent attention has no index, and none before it to share";
            return Err(hp.bad(TYPES, problem));
        }
        let of = Sizes::read(hp)?;
        let (sizes, eps) = (pools(hp, of.per_row)?, hp.layer_norm_eps()?);
        Ok(Self { of, sizes, has, shared, place, eps })
    }

    /// Choice of the positions that a row of layer `il` attends to.
    fn chosen(&self, hp: &Hparams<'_>, il: usize, mla: &MlaSpec) -> Result<ChosenSpec, ModelError> {
        let &Self { sizes, place, eps, .. } = self;
        if !self.has[il] {
            return Ok(ChosenSpec { sizes, by: ChosenBy::Before, place });
        }
        let own = self.of.own(hp, il, mla, Rotation::None, self.shared)?;
        let by = match own.by {
            ChosenBy::Index(index) => ChosenBy::Index(IndexSpec { eps, ..index }),
            ChosenBy::Before => ChosenBy::Before,
        };
        Ok(ChosenSpec { sizes, by, place })
    }
}

/// The pools of rows that attend to `n` positions in them.
fn pools(hp: &Hparams<'_>, n: usize) -> Result<PoolSizes, ModelError> {
    const SIZE: &str = "attention.indexer.kpool";
    const TAIL: &str = "attention.indexer.kpool_select_tail";
    let positions = hp.need_u32(SIZE)? as usize;
    if positions < 2 || !n.is_multiple_of(positions) {
        let problem = format!(
            "is {positions}, must be 2 or more and divide the {n} positions of a row (top_k)"
        );
        return Err(hp.bad(SIZE, &problem));
    }
    if hp.bool(TAIL)? == Some(false) {
        let problem = "must be true: else rows before the end of the first pool attend to nothing";
        return Err(hp.bad(TAIL, problem));
    }
    Ok(PoolSizes { positions, per_row: n / positions })
}

/// Bounds of the experts' SwiGLUs, and of those of shared experts and dense FFNs.
struct Limits {
    experts: SwiGluLimits,
    others: SwiGluLimits,
}

impl Limits {
    fn read(hp: &Hparams<'_>) -> Result<Self, ModelError> {
        const EXPERTS: &str = "swiglu_clamp_exp";
        const OTHERS: &str = "swiglu_clamp_shexp";
        let others = if hp.f32_per_layer(OTHERS)?.is_some() { OTHERS } else { EXPERTS };
        let limits = |key| SwiGluLimits::read(hp, key, GateBound::Before);
        Ok(Self { experts: limits(EXPERTS)?, others: limits(others)? })
    }
}

fn dense(hp: &Hparams<'_>, il: usize, limits: &Limits) -> Result<BlockKind, ModelError> {
    match hp.need_per_layer("feed_forward_length")?[il] {
        0 => Err(hp.bad("feed_forward_length", "must be positive")),
        n_ff => Ok(BlockKind::Mlp(MlpSpec::new(n_ff, limits.others.of(il)))),
    }
}

fn moe(hp: &Hparams<'_>, il: usize, limits: &Limits) -> Result<BlockKind, ModelError> {
    let router = hp.expert_router()?.unwrap_or(Router::Sigmoid);
    let experts = deepseek2::shared_and_routed(hp, il, router)?;
    let activation = limits.others.of(il);
    let shared = experts.shared.as_ref().map(|s| SharedExpertSpec::new(s.mlp.n_ff, activation));
    Ok(BlockKind::Moe(MoeSpec { activation: limits.experts.of(il), shared, ..experts }))
}

#[cfg(test)]
mod tests {
    use crate::headers::refusal;

    fn refused(changed: &[(&str, u32)]) -> String {
        let counts = [
            ("block_count", 2),
            ("context_length", 128),
            ("embedding_length", 32),
            ("feed_forward_length", 64),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 1),
            ("attention.key_length_mla", 16),
            ("attention.value_length_mla", 16),
            ("attention.q_lora_rank", 24),
            ("attention.kv_lora_rank", 32),
            ("rope.dimension_count", 0),
            ("leading_dense_block_count", 1),
            ("expert_count", 8),
            ("expert_used_count", 3),
            ("expert_feed_forward_length", 16),
            ("expert_shared_count", 1),
            ("attention.indexer.head_count", 4),
            ("attention.indexer.key_length", 16),
            ("attention.indexer.top_k", 16),
            ("attention.indexer.kpool", 4),
            ("attention.indexer.types", 1),
            ("hyper_connection.count", 4),
            ("hyper_connection.sinkhorn_iterations", 20),
        ];
        let value = |(key, count)| {
            (key, changed.iter().find(|(name, _)| *name == key).map_or(count, |(_, value)| *value))
        };
        let numbers = [
            ("attention.layer_norm_rms_epsilon", 1e-5),
            ("attention.layer_norm_epsilon", 1e-6),
            ("hyper_connection.epsilon", 1e-6),
        ];
        refusal("glm5-next", &counts.map(value), &numbers)
    }

    #[test]
    fn what_does_not_run_is_refused_by_its_key() {
        for (key, value, problem) in [
            ("attention.indexer.kpool", 1, "must be 2 or more"),
            ("attention.indexer.kpool", 5, "divide the 16 positions"),
            ("attention.indexer.top_k", 1 << 30, "must be at most 65536"),
            ("attention.indexer.types", 0, "none before it to share"),
            ("attention.q_lora_rank", 0, "must be positive"),
            ("rope.dimension_count", 8, "must be 0"),
            ("hyper_connection.count", 1, "between 2 and 64"),
            ("hyper_connection.sinkhorn_iterations", 0, "between 1 and 1000"),
            ("hyper_connection.sinkhorn_iterations", u32::MAX, "between 1 and 1000"),
        ] {
            let message = refused(&[(key, value)]);
            let key = format!("glm5-next.{key}");
            assert!(message.contains(&key) && message.contains(problem), "{key}: {message}");
        }
    }
}
