//! Costs of workers with two devices: a GPU, and the host for routed experts.

use std::ops::Range;

use brigade_engine::device::bytes_for_guests;
use brigade_worker::machine::memory::PROCESS_BYTES;

use super::Capacity;
use super::cost::{Costs, StageMemory, StageTime};
use super::error::PlanError;
use super::facts::{HostExperts, LayerFacts, ModelFacts, WorkerFacts};
use super::layer_time::RowTime;

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
                let all = self.memory_of_one(worker, range, capacity);
                let too_much = all.total().saturating_sub(has.memory);
                // Those that lie with the host need places here for ubatches of many rows.
                let suffices = |upto: &usize| {
                    let host = range.start..*upto;
                    self.sums.routed(&host) >= too_much.saturating_add(self.guests(worker, &host))
                };
                (range.start..range.end).find(suffices).unwrap_or(range.end)
            }
        };
        range.start..upto
    }

    /// Time of layers `range` as a stage on a worker, with experts where [`Costs::host_layers`] puts them.
    pub fn time(&self, worker: usize, range: &Range<usize>, capacity: Capacity) -> StageTime {
        let host = self.host_layers(worker, range, capacity);
        let RowTime { decode_us, prefill_us } = self.times[worker].of(range, &host);
        let mut time = StageTime { decode_us, prefill_us, ..StageTime::default() };
        if range.end == self.n_layers() {
            time.decode_us += self.head_us(worker);
            time.drafts_us = self.drafts_us(worker);
        } else if let Some(link) = self.workers[worker].link {
            time.send_us = self.model.cut_bytes[range.end] as f64 / link.gbps * 1e-3;
        }
        time
    }

    /// A unit of work on a stage, in microseconds, as cuts are chosen by it. Some keys' drafts are right and others' are not, and
    /// a full line drafts nothing. So a cut is as good as it is in the worse of both cases, each beside the best cut for it.
    pub fn unit_us(&self, worker: usize, range: &Range<usize>, capacity: Capacity) -> f64 {
        let time = self.time(worker, range, capacity);
        let drafting = time.drafting_unit_us(self.settings) / self.drafting_slows;
        drafting.max(time.unit_us(self.settings))
    }

    /// Memory of layers `range` as a stage on a worker, by device.
    pub fn memory_on(
        &self,
        worker: usize,
        range: &Range<usize>,
        capacity: Capacity,
    ) -> StageMemory {
        let all = self.memory_of_one(worker, range, capacity);
        let host = self.host_layers(worker, range, capacity);
        let host_experts = self.sums.routed(&host);
        if host_experts == 0 {
            return all;
        }
        let rows = self.model.scratch_bytes_per_row.saturating_mul(self.settings.max_rows.into());
        // What goes to a GPU with memory of its own is packed with the host first, before experts have any rows.
        let is_apart = self.workers[worker].host.is_some_and(|host| host.memory.is_some());
        let is_last = range.end == self.n_layers();
        let on_its_way = if is_apart { self.model.loading.on_its_way(is_last) } else { 0 };
        let weights = all.weights.saturating_sub(host_experts);
        let weights = weights.saturating_add(self.guests(worker, &host));
        StageMemory { weights, host_experts, host_scratch: rows.max(on_its_way), ..all }
    }

    /// Memory of layers `range` as a stage on a worker, all on one device.
    fn memory_of_one(
        &self,
        worker: usize,
        range: &Range<usize>,
        capacity: Capacity,
    ) -> StageMemory {
        let all = self.memory(range, capacity);
        if self.workers[worker].host.is_none_or(|host| host.memory.is_none()) {
            return all;
        }
        // Tensors are packed in the host's memory, which is not the stage's.
        let is_last = range.end == self.n_layers();
        StageMemory { scratch: PROCESS_BYTES.saturating_add(self.work_memory(is_last)), ..all }
    }

    /// Whether layers `range` have room on a worker: in its memory, and in its cache.
    pub fn fits(&self, worker: usize, range: &Range<usize>, capacity: Capacity) -> bool {
        let is_stored =
            self.workers[worker].disk.is_none_or(|disk| self.stored(range) <= disk.left);
        is_stored && self.lacks(worker, range, capacity).is_none()
    }

    /// Bytes that layers `range` need in a worker's cache.
    pub fn stored(&self, range: &Range<usize>) -> u64 {
        self.model.stored.bytes(range, self.model.drafts.weight_bytes > 0)
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

    /// Bytes of the places on a worker's GPU for experts of layers `host`, which lie with its host and are sent there for ubatches of
    /// many rows.
    fn guests(&self, worker: usize, host: &Range<usize>) -> u64 {
        let are_sent = self.workers[worker].host.is_some_and(|host| host.sent_gbps > 0.0);
        let layers = self.model.layers[host.clone()].iter().map(LayerFacts::matrices);
        if are_sent { bytes_for_guests(layers) } else { 0 }
    }
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
