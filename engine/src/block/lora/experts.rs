//! Changes of adapters to projections that each expert has for itself.

use std::sync::Arc;

use super::{Lora, scale_of};
use crate::batch::AdapterUse;
use crate::device::{Device, ExpertChange, ExpertMatrices, Rows, Scratch};
use crate::ops::RoutingPart;
use crate::spec::ModelError;
use crate::weights::WeightLoader;

/// An adapter's change of a projection of each expert.
pub(in crate::block) struct ExpertLora {
    adapter: u32,
    /// `[rank, in features]` each.
    a: ExpertMatrices,
    /// `[out features, rank]` each.
    b: ExpertMatrices,
    rank: usize,
    alpha: f32,
}

impl ExpertLora {
    /// Changes of one projection, from those of each expert. All experts must have the same adapters in the same order.
    pub(in crate::block) fn together(
        loader: &WeightLoader<'_>,
        experts: Vec<Vec<Lora>>,
    ) -> Result<Vec<Self>, ModelError> {
        let n_adapters = experts.first().map_or(0, Vec::len);
        let mut experts: Vec<_> = experts.into_iter().map(Vec::into_iter).collect();
        let mut all = Vec::with_capacity(n_adapters);
        for _ in 0..n_adapters {
            let of_experts: Vec<Lora> = experts.iter_mut().filter_map(Iterator::next).collect();
            all.extend(Self::of(loader, of_experts)?);
        }
        Ok(all)
    }

    /// The change by one adapter; `None` where there are no experts.
    fn of(loader: &WeightLoader<'_>, experts: Vec<Lora>) -> Result<Option<Self>, ModelError> {
        let Some(first) = experts.first() else { return Ok(None) };
        let (adapter, rank, alpha) = (first.adapter, first.b.cols(), first.alpha);
        let halves = experts.into_iter().map(|Lora { a, b, .. }| (a, Arc::new(b)));
        let (a, b): (Vec<_>, Vec<_>) = halves.unzip();
        let (a, b) = (loader.together(a)?, loader.together(b)?);
        Ok(Some(Self { adapter, a, b, rank, alpha }))
    }

    /// Whether it is one of these.
    pub(in crate::block) fn is_used(&self, uses: &[AdapterUse]) -> bool {
        uses.iter().any(|used| used.adapter == self.adapter)
    }

    /// Bytes of its matrices. A matrix that several projections share is counted once over all of them.
    pub(in crate::block) fn nbytes(&self) -> usize {
        self.a.nbytes() + self.b.nbytes()
    }

    /// Bytes among these that lie elsewhere than in the memory of the stage's device.
    pub(in crate::block) fn nbytes_beside(&self) -> usize {
        self.a.nbytes_beside() + self.b.nbytes_beside()
    }
}

/// Rows that use the same adapters, some of which are for these experts.
pub(in crate::block) struct Adapted<'a> {
    pub(in crate::block) rows: RoutingPart<'a>,
    pub(in crate::block) uses: &'a [AdapterUse],
}

/// Adds to `out`, `[n_pairs, out features]`, what `loras` add for rows that use the same adapters, of whose pairs `x` has the
/// inputs, `[n_pairs, in features]`. Several adapters of a row add in the order in which the row names them.
pub(in crate::block) fn add_to_experts(
    device: &Device,
    scratch: &Scratch,
    adapted: &Adapted<'_>,
    loras: &[ExpertLora],
    x: &Rows,
    out: &mut Rows,
) {
    for used in adapted.uses {
        if let Some(lora) = loras.iter().find(|lora| lora.adapter == used.adapter) {
            let scale = scale_of(lora.alpha, lora.rank, used.scale);
            let change = ExpertChange { a: &lora.a, b: &lora.b, scale };
            device.add_expert_change(scratch, &adapted.rows, &change, x, out);
        }
    }
}
