//! `hy_v4` (Hunyuan 4): deepseek2's layers with gated latent attention that has sinks, and with several streams that do not
//! mix. In some models a row attends to the positions that an index chose; layers without an index attend to those of the
//! one before them that has one.

use brigade_spec::{
    Beside, BlockKind, ChosenBy, ChosenSpec, HeadReads, HeadSpec, HyperSpec, IndexSpec, MlaGate,
    MlaSpec, ModelError, ModelSpec, MoeSpec, Rotation, Skeleton, Streams,
};

use super::deepseek2;
use super::deepseek32::Sizes;
use crate::read::limits::SwiGluLimits;
use crate::read::{Hparams, hyper, mla, model, rope};
use brigade_shapes::{GateBound, PoolSizes, RopeLayout};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let streams = streams(hp, eps)?;
    let indexes = Indexes::read(hp, &streams, eps)?;
    let limits = SwiGluLimits::read(hp, "swiglu_clamp_exp", GateBound::Before)?;
    let n_dense = hp.u32("leading_dense_block_count")?.unwrap_or(0) as usize;
    let widest = mla::read(hp, 0, eps)?;
    let rope = rope::read(hp, RopeLayout::Norm, widest.n_nope + widest.n_pe, false)?;
    let mut layers = Vec::with_capacity(hp.n_layer());
    for il in 0..hp.n_layer() {
        let attention = mla::read(hp, il, eps)?;
        let chosen = match &indexes {
            Some(indexes) => Some(indexes.chosen(hp, il, &attention)?),
            None => None,
        };
        let gate = Some(MlaGate::EachValue);
        let attention =
            MlaSpec { gate, sinks: true, rotation: Rotation::Model, chosen, ..attention };
        let ffn = if il < n_dense { deepseek2::dense(hp, il)? } else { moe(hp, il, &limits)? };
        layers.push(hyper::layer(streams, eps, BlockKind::Mla(attention), ffn));
    }
    let shares = indexes.is_some_and(|indexes| indexes.shares());
    let beside = if shares { Beside::Chosen } else { Beside::Nothing };
    let skeleton = Skeleton { beside, streams: Streams::Alike(streams.n), ..Skeleton::default() };
    let head = HeadSpec { reads: HeadReads::Hyper(streams), ..HeadSpec::usual(eps) };
    Ok(ModelSpec { rope: Some(rope), skeleton, head, ..model::usual(hp, layers, eps)? })
}

fn streams(hp: &Hparams<'_>, eps: f32) -> Result<HyperSpec, ModelError> {
    let streams = hyper::read(hp, eps)?;
    let magnitude = hp.need_f32("hyper_connection.magnitude")?;
    Ok(HyperSpec { magnitude, post_eps: streams.eps, ..streams })
}

fn moe(hp: &Hparams<'_>, il: usize, limits: &SwiGluLimits) -> Result<BlockKind, ModelError> {
    let Some(router) = hp.expert_router()? else {
        return Err(hp.bad("expert_gating_func", "must be present"));
    };
    let experts = deepseek2::shared_and_routed(hp, il, router)?;
    // Shared experts have no bound.
    Ok(BlockKind::Moe(MoeSpec { activation: limits.of(il), ..experts }))
}

/// The layers that choose positions, and how.
struct Indexes {
    sizes: Sizes,
    has: Vec<bool>,
    /// Number of the tensor beside the stream that has the positions: the one behind the other streams.
    place: usize,
    eps: f32,
}

impl Indexes {
    /// `None` where all rows attend to all before them.
    fn read(hp: &Hparams<'_>, streams: &HyperSpec, eps: f32) -> Result<Option<Self>, ModelError> {
        const TYPES: &str = "attention.indexer.types";
        if hp.u32("attention.indexer.top_k")?.unwrap_or(0) == 0 {
            return Ok(None);
        }
        let has: Vec<bool> = match hp.per_run_layer(TYPES)? {
            Some(types) => types.iter().map(|of| *of != 0).collect(),
            None => return Err(hp.bad(TYPES, "must say which layers have an index")),
        };
        if has.first() != Some(&true) {
            return Err(hp.bad(TYPES, "the first layer has no index, and none before it to share"));
        }
        Ok(Some(Self { sizes: Sizes::read(hp)?, has, place: streams.n - 1, eps }))
    }

    /// Whether layers attend to the positions of others.
    fn shares(&self) -> bool {
        self.has.contains(&false)
    }

    /// The positions of layer `il`. An index's elements that are rotated come last.
    fn chosen(&self, hp: &Hparams<'_>, il: usize, mla: &MlaSpec) -> Result<ChosenSpec, ModelError> {
        let Self { sizes, place, eps, .. } = self;
        if !self.has[il] {
            let (sizes, by) = (PoolSizes::single(sizes.per_row), ChosenBy::Before);
            return Ok(ChosenSpec { sizes, by, place: *place });
        }
        let own = sizes.own(hp, il, mla, Rotation::Model, self.shares())?;
        let by = match own.by {
            ChosenBy::Index(index) => {
                ChosenBy::Index(IndexSpec { rotates_last: true, eps: *eps, ..index })
            }
            ChosenBy::Before => ChosenBy::Before,
        };
        Ok(ChosenSpec { by, place: *place, ..own })
    }
}
