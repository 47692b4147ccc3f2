//! The time of a row in each layer of a model on one worker, with routed experts on its device or beside it.

use std::ops::{Add, Range, Sub};

use brigade_engine::device::VisitSpeeds;
use brigade_worker::backend::product_class::ByClass;

use super::PlanSettings;
use super::facts::{HostFacts, LayerFacts, ModelFacts, WorkerFacts};
use super::layer_sums::running;

/// Microseconds of a row in some layers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowTime {
    /// A generated token's.
    pub decode_us: f64,
    /// A prompt's.
    pub prefill_us: f64,
}

impl Add for RowTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            decode_us: self.decode_us + other.decode_us,
            prefill_us: self.prefill_us + other.prefill_us,
        }
    }
}

impl Sub for RowTime {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            decode_us: self.decode_us - other.decode_us,
            prefill_us: self.prefill_us - other.prefill_us,
        }
    }
}

/// A row's times in layers `0..i` on one worker.
pub(super) struct LayerTimes {
    /// With all of a layer on the worker's device.
    here: Vec<RowTime>,
    /// With routed experts beside the device; empty for a worker that has none there.
    beside: Vec<RowTime>,
}

impl LayerTimes {
    pub(super) fn new(model: &ModelFacts, settings: &PlanSettings, worker: &WorkerFacts) -> Self {
        let sums = |of: &dyn Fn(&LayerFacts) -> RowTime| {
            running(&model.layers, RowTime::default(), |sum, layer| sum + of(layer))
        };
        let of_host = |host: &HostFacts| sums(&|layer| beside(layer, settings, worker, host));
        Self {
            here: sums(&|layer| here(layer, settings, worker)),
            beside: worker.host.as_ref().map_or_else(Vec::new, of_host),
        }
    }

    /// A row's time in layers `range`, of which the first ones, `host`, have their routed experts beside the device.
    pub(super) fn of(&self, range: &Range<usize>, host: &Range<usize>) -> RowTime {
        let of = |sums: &[RowTime], range: Range<usize>| {
            if range.is_empty() { RowTime::default() } else { sums[range.end] - sums[range.start] }
        };
        of(&self.beside, host.clone()) + of(&self.here, host.end..range.end)
    }
}

/// A row's time in a layer that lies on the worker's device.
fn here(layer: &LayerFacts, settings: &PlanSettings, worker: &WorkerFacts) -> RowTime {
    let batch = f64::from(settings.decode_batch);
    let cache = layer.cache_read(f64::from(settings.typical_positions));
    let state = 2.0 * layer.state_bytes() as f64;
    let read = layer.read_bytes(batch) / batch + cache + state;
    RowTime {
        decode_us: slower(read, layer.elements, worker),
        prefill_us: products_us(layer.elements, worker.gops),
    }
}

/// A row's time in a layer whose routed experts are the host's. The host works while the GPU waits.
fn beside(
    layer: &LayerFacts,
    settings: &PlanSettings,
    worker: &WorkerFacts,
    host: &HostFacts,
) -> RowTime {
    let batch = f64::from(settings.decode_batch);
    let cache = layer.cache_read(f64::from(settings.typical_positions));
    let state = 2.0 * layer.state_bytes() as f64;
    let routed = layer.routed_read(batch);
    let dense = layer.dense_elements();
    let read = (layer.read_bytes(batch) - routed) / batch + cache + state;
    let of_host = slower_there(routed / batch, layer.routed_elements, host);
    let rows = settings.max_rows.max(1) as usize;
    let prefill = routed_prefill_us(layer, rows, worker, host);
    RowTime {
        decode_us: slower(read, dense, worker) + of_host,
        prefill_us: products_us(dense, worker.gops) + prefill,
    }
}

/// The time of a prompt's row in a layer's routed experts that lie with the host, in a ubatch of `rows` rows that
/// uses all experts equally. Experts are sent to the GPU where that is faster.
fn routed_prefill_us(
    layer: &LayerFacts,
    rows: usize,
    worker: &WorkerFacts,
    host: &HostFacts,
) -> f64 {
    let elements = layer.routed_elements;
    let bytes: u64 = layer.matrices().iter().sum();
    let used = layer.expert_share * layer.routed_bytes as f64 / bytes.max(1) as f64;
    if host.sent_gbps <= 0.0 || bytes == 0 || used < 1.0 {
        return products_us(elements, host.gops);
    }
    let n = (layer.routed_bytes / bytes) as usize;
    let of_each = (rows as f64 * layer.expert_share) as usize;
    let per_second = |giga: f64| giga * 1e9;
    let speeds = VisitSpeeds {
        sent_bytes: per_second(host.sent_gbps),
        sent_beside: host.sent_beside,
        gpu_operations: per_second(elements.mean_speed(worker.gops)),
        host_bytes: per_second(host.gbps),
        host_operations: per_second(elements.mean_speed(host.gops)),
    };
    let operations = 2.0 * elements.sum() as f64 / used;
    speeds.seconds_of_layer(n, of_each.max(1), bytes, operations) * 1e6 / rows as f64
}

/// Microseconds in which a row is multiplied with these elements: a multiply-add is two operations.
pub(super) fn products_us(elements: ByClass<u64>, gops: ByClass<f64>) -> f64 {
    elements.zip(gops, |n, gops| 2.0 * n as f64 / gops * 1e-3).sum()
}

fn slower_there(bytes: f64, elements: ByClass<u64>, host: &HostFacts) -> f64 {
    (bytes / host.gbps * 1e-3).max(products_us(elements, host.gops))
}

/// The longer of reading `bytes` and of computing a row's products with `elements`, in microseconds.
pub(super) fn slower(bytes: f64, elements: ByClass<u64>, worker: &WorkerFacts) -> f64 {
    (bytes / worker.gbps * 1e-3).max(products_us(elements, worker.gops))
}
