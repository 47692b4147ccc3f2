//! Workers of two devices: a GPU, and the host for routed experts. Which experts lie where, and what that costs.

use std::collections::BTreeSet;
use std::ops::Range;

use super::Capacity;
use super::PlanSettings;
use super::cost::{Costs, StageMemory, slower};
use super::error::PlanError;
use super::facts::{HostExperts, HostFacts, LayerFacts, ModelFacts, WorkerFacts};

impl Costs<'_> {
    /// The first layers of `range` whose routed experts lie with the worker's host: as many as were asked for, or as do not fit
    /// on its GPU.
    pub fn host_layers(
        &self,
        worker: usize,
        range: &Range<usize>,
        capacity: Capacity,
    ) -> Range<usize> {
        let has = &self.workers[worker];
        let upto = match has.host.map(|host| host.experts) {
            None => range.start,
            Some(HostExperts::All) => range.end,
            Some(HostExperts::Layers(n)) => (n as usize).clamp(range.start, range.end),
            // Where both are one memory, nothing is won.
            Some(HostExperts::Auto) if has.host.is_some_and(|host| host.memory.is_none()) => {
                range.start
            }
            Some(HostExperts::Auto) => {
                let too_much = self.memory(range, capacity).total().saturating_sub(has.memory);
                let suffices = |upto: &usize| self.routed(&(range.start..*upto)) >= too_much;
                (range.start..range.end).find(suffices).unwrap_or(range.end)
            }
        };
        range.start..upto
    }

    /// What layers `range` need as a stage on a worker, by device.
    pub fn memory_on(
        &self,
        worker: usize,
        range: &Range<usize>,
        capacity: Capacity,
    ) -> StageMemory {
        let all = self.memory(range, capacity);
        let host_experts = self.routed(&self.host_layers(worker, range, capacity));
        if host_experts == 0 {
            return all;
        }
        let rows = self.model.scratch_bytes_per_row.saturating_mul(self.settings.max_rows.into());
        let weights = all.weights.saturating_sub(host_experts);
        StageMemory { weights, host_experts, host_scratch: rows, ..all }
    }

    /// Bytes needed, and there, in the memory of a worker that layers `range` lack most of; `None` where they fit.
    pub fn lacks(
        &self,
        worker: usize,
        range: &Range<usize>,
        capacity: Capacity,
    ) -> Option<(u64, u64)> {
        let (needs, has) = (self.memory_on(worker, range, capacity), &self.workers[worker]);
        let pairs = match has.host.and_then(|host| host.memory) {
            None => [(needs.total(), has.memory), (0, 0)],
            Some(host) => [(needs.of_device(), has.memory), (needs.of_host(), host)],
        };
        let lack = |(needs, has): &(u64, u64)| needs.saturating_sub(*has);
        pairs.into_iter().filter(|pair| lack(pair) > 0).max_by_key(lack)
    }

    /// Bytes of the routed experts of layers `range`. Weights that several layers have count once.
    fn routed(&self, range: &Range<usize>) -> u64 {
        if !self.shares {
            return self.routed[range.end] - self.routed[range.start];
        }
        let first = |layer: usize| self.model.layers[layer].same_weights.unwrap_or(layer);
        let firsts: BTreeSet<usize> = range.clone().map(first).collect();
        let bytes = firsts.into_iter().map(|layer| self.model.layers[layer].routed_bytes);
        bytes.fold(0, u64::saturating_add)
    }
}

/// A row's time in a layer whose routed experts are the host's, for decode and for prompts. The host works while the GPU waits.
pub(super) fn times_us(
    layer: &LayerFacts,
    settings: &PlanSettings,
    (worker, host): (&WorkerFacts, &HostFacts),
) -> (f64, f64) {
    let batch = f64::from(settings.decode_batch);
    let cache = layer.cache_read(f64::from(settings.typical_positions));
    let state = 2.0 * layer.state_bytes() as f64;
    let routed = layer.routed_read(batch);
    let (dense_ops, routed_ops) = ops(layer);
    let read = (layer.read_bytes(batch) - routed) / batch + cache + state;
    let decode = slower(read, dense_ops, worker) + slower_there(routed / batch, routed_ops, host);
    (decode, (dense_ops / worker.gops + routed_ops / host.gops) * 1e-3)
}

/// A row's operations in a layer: those of the GPU and of its routed experts.
pub(super) fn ops(layer: &LayerFacts) -> (f64, f64) {
    let routed = 2.0 * layer.routed_elements as f64;
    (layer.ops() - routed, routed)
}

fn slower_there(bytes: f64, ops: f64, host: &HostFacts) -> f64 {
    (bytes / host.gbps).max(ops / host.gops) * 1e-3
}

/// Refuses a number of layers that the model does not have.
///
/// # Errors
/// [`PlanError::HostExperts`].
pub(super) fn check(model: &ModelFacts, workers: &[WorkerFacts]) -> Result<(), PlanError> {
    let n_layers = model.layers.len();
    for worker in workers {
        if let Some(HostExperts::Layers(n)) = worker.host.map(|host| host.experts)
            && n as usize > n_layers
        {
            return Err(PlanError::HostExperts { worker: worker.name.clone(), n, n_layers });
        }
    }
    Ok(())
}
