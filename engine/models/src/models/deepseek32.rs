//! `deepseek32` (DeepSeek-V3.2) and `glm-dsa` (GLM-5): deepseek2 in which a row attends to the positions that an index
//! chose for it. (DeepSeek-V3.2, section 2.1.)
//!
//! In deepseek32 every layer has an index, with NEOX rotation. In glm-dsa it has NORM rotation; since GLM-5.2 only some
//! layers have one, and the layers after each of them attend to the same positions. A block that drafts has an index and
//! attends to all positions without it.

use brigade_spec::{
    Beside, ChosenBy, ChosenSpec, IndexSpec, MlaSpec, ModelError, ModelSpec, RopeSpec, Rotation,
    Router, Skeleton,
};

use super::deepseek2;
use crate::read::Hparams;
use crate::read::own_drafts::with_heads;
use brigade_shapes::{PoolSizes, RopeLayout};

/// Epsilon of the norm of an index's keys, which files do not name.
const KEY_NORM_EPS: f32 = 1e-6;
/// Most positions of a row that are believed; models have two thousand.
const MOST_PER_ROW: usize = 1 << 16;
/// Part of the names of an index's tensors.
const INDEX_TENSORS: &str = ".indexer.";
/// Context from which on a glm-dsa shares positions, if its file does not say which layers have an index.
const SHARES_FROM: u32 = 1 << 20;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = Sizes::read(hp)?;
    let chosen = |il, mla: &MlaSpec| {
        if il < hp.n_layer() {
            sizes.own(hp, il, mla, Rotation::Local, false).map(Some)
        } else {
            Ok(None)
        }
    };
    let spec = drafting_without(deepseek2::describe_with(hp, Router::Softmax, chosen)?);
    let neox = |rope: &RopeSpec| RopeSpec { layout: RopeLayout::Neox, ..rope.clone() };
    let local_rope = spec.rope.as_ref().map(neox);
    Ok(ModelSpec { local_rope, ..spec })
}

pub(super) fn describe_glm(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let sizes = Sizes::read(hp)?;
    let has_index = layers_with_index(hp)?;
    let shared = has_index.contains(&false);
    let chosen = |il: usize, mla: &MlaSpec| {
        let Some(has_index) = has_index.get(il) else { return Ok(None) };
        Ok(Some(if *has_index {
            sizes.own(hp, il, mla, Rotation::Model, shared)?
        } else {
            let sizes = PoolSizes::single(sizes.per_row);
            ChosenSpec { sizes, by: ChosenBy::Before, place: 0 }
        }))
    };
    let spec = drafting_without(deepseek2::describe_with(hp, Router::Sigmoid, chosen)?);
    let beside = if shared { Beside::Chosen } else { Beside::Nothing };
    Ok(ModelSpec { skeleton: Skeleton { beside, ..spec.skeleton }, ..spec })
}

/// `spec` with blocks of drafts that leave their indexes out.
fn drafting_without(spec: ModelSpec) -> ModelSpec {
    with_heads(spec, |head| {
        head.unread = Some(INDEX_TENSORS);
        Ok(())
    })
}

/// Sizes of all layers' indexes.
pub(super) struct Sizes {
    n_head: usize,
    head_dim: usize,
    /// Positions that a row attends to.
    pub(super) per_row: usize,
}

impl Sizes {
    pub(super) fn read(hp: &Hparams<'_>) -> Result<Self, ModelError> {
        let size = |key| match hp.need_u32(key)? {
            0 => Err(hp.bad(key, "must be positive")),
            n => Ok(n as usize),
        };
        const TOP_K: &str = "attention.indexer.top_k";
        let per_row = size(TOP_K)?;
        if per_row > MOST_PER_ROW {
            return Err(hp.bad(TOP_K, &format!("is {per_row}, must be at most {MOST_PER_ROW}")));
        }
        Ok(Self {
            n_head: size("attention.indexer.head_count")?,
            head_dim: size("attention.indexer.key_length")?,
            per_row,
        })
    }

    /// The positions that layer `il` chooses for itself, and where `shared` for layers after it.
    pub(super) fn own(
        &self,
        hp: &Hparams<'_>,
        il: usize,
        mla: &MlaSpec,
        rotation: Rotation,
        shared: bool,
    ) -> Result<ChosenSpec, ModelError> {
        let &Self { n_head, head_dim, per_row } = self;
        if mla.n_pe > head_dim {
            let problem = format!("is {head_dim}, of which {} are to be rotated", mla.n_pe);
            return Err(hp.bad("attention.indexer.key_length", &problem));
        }
        if mla.q_rank.is_none() {
            let problem =
                format!("layer {il} has an index, which reads narrow queries, and no attn_q_a");
            return Err(hp.bad("attention.q_lora_rank", &problem));
        }
        let (rotates_last, halves, eps) = (false, false, KEY_NORM_EPS);
        let index = IndexSpec { n_head, head_dim, rotation, rotates_last, halves, eps, shared };
        let sizes = PoolSizes::single(per_row);
        Ok(ChosenSpec { sizes, by: ChosenBy::Index(index), place: 0 })
    }
}

/// For each layer, whether it has an index.
fn layers_with_index(hp: &Hparams<'_>) -> Result<Vec<bool>, ModelError> {
    const KEY: &str = "attention.indexer.types";
    let has_index = match hp.per_run_layer(KEY)? {
        Some(types) => types.iter().take(hp.n_layer()).map(|of| *of != 0).collect(),
        None if hp.need_u32("context_length")? < SHARES_FROM => vec![true; hp.n_layer()],
        // As GLM-5.2 has them.
        None => (0..hp.n_layer()).map(|il| il < 2 || il % 4 == 2).collect::<Vec<bool>>(),
    };
    match has_index.first() {
        Some(false) => {
            Err(hp.bad(KEY, "the first layer has no index, and none before it to share"))
        }
        _ => Ok(has_index),
    }
}
