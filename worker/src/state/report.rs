//! Answers about the worker itself: its capabilities, and its health (the answer to a heartbeat).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use brigade_proto::control::{
    Capabilities, Feature, HealthReply, HeldLayers, HostPart, NodePart, Phase, PrefixRecords,
    ProductSpeeds, WireType,
};
use brigade_proto::failure::Failure;

use super::resident::ReadyStage;
use super::session::shown;
use super::{Inner, Worker};
use crate::backend::HostAbility;
use crate::backend::measure::Speeds;
use crate::backend::product_class::ByClass;
use crate::loading::order::StageKey;
use crate::machine::ledger::{Amount, NodeMemory};
use crate::machine::memory;
use crate::prefixes::store::Used;

/// How old a reading of the machine's memory may be: the files it comes from are read on the thread
/// that receives and sends, for a tenth of a millisecond.
const FRESH: Duration = Duration::from_millis(100);

/// The system's last figures about memory, with the times of reading.
#[derive(Debug, Default)]
pub(super) struct Readings {
    available: Reading<u64>,
    resident: Reading<[u64; 2]>,
}

type Reading<T> = Mutex<Option<(Instant, Option<T>)>>;

/// The last reading if it is fresh, else a new one.
fn fresh<T: Copy>(
    reading: &Reading<T>,
    now: Instant,
    read: impl FnOnce() -> Option<T>,
) -> Option<T> {
    let mut last = reading.lock().unwrap_or_else(PoisonError::into_inner);
    match *last {
        Some((at, value)) if now.saturating_duration_since(at) < FRESH => value,
        _ => last.insert((now, read())).1,
    }
}

/// Capabilities of this release beyond its wire version.
const FEATURES: [Feature; 13] = [
    Feature::LoadAhead,
    Feature::Adapters,
    Feature::Companion,
    Feature::Windows,
    Feature::ControlVectors,
    Feature::LaterDraws,
    Feature::Growth,
    Feature::Ahead,
    Feature::Fetch,
    Feature::Gather,
    Feature::OwnDrafts,
    Feature::StageAddresses,
    Feature::ChangedSlots,
];

impl Worker {
    fn features(&self) -> impl Iterator<Item = Feature> {
        let records = self.prefixes.as_ref().map(|_| Feature::Prefixes);
        FEATURES.into_iter().chain(records)
    }

    /// Whether this is the coordinator that holds the worker.
    pub fn is_owner(&self, coordinator_id: &str) -> bool {
        self.inner().session.owner() == Some(coordinator_id)
    }

    /// Checks that a coordinator may take the worker now.
    ///
    /// # Errors
    /// Draining, Busy, or BadMessage for an invalid name.
    pub fn check_free_for(&self, coordinator_id: &str) -> Result<(), Failure> {
        self.inner().session.check_free_for(Instant::now(), coordinator_id)
    }

    /// Checks that a call is of the coordinator and the epoch that hold the worker.
    ///
    /// # Errors
    /// Busy or StaleEpoch.
    pub fn check(&self, coordinator_id: &str, epoch: u64) -> Result<(), Failure> {
        self.inner().session.check(Instant::now(), coordinator_id, epoch)
    }

    /// The worker's identity and capabilities, with its present memory.
    pub fn capabilities(&self) -> Capabilities {
        let abilities = self.loader.backend.abilities().clone();
        let Amount { stage: limit, .. } = self.loader.ledger.part();
        let held = {
            let inner = self.inner();
            held(&inner).iter().sum::<u64>() + inner.ahead_bytes()
        };
        let read = || self.loader.backend.free_bytes();
        let available = fresh(&self.readings.available, Instant::now(), read);
        let free = available.map_or(limit, |free| limit.min(free + held));
        let wire_types = [WireType::F32, WireType::F16, WireType::Bf16, WireType::Q80];
        Capabilities {
            architectures: abilities.architectures,
            quant_types: abilities.quant_types,
            wire_types: wire_types.into_iter().map(i32::from).collect(),
            kernel_tables: abilities.kernel_tables,
            kernel_numerics: abilities.kernel_numerics,
            kernels: abilities.kernels,
            threads: abilities.threads,
            memory_limit: limit,
            memory_free: free,
            gb_per_second: abilities.speeds.gb_per_second,
            gop_per_second: abilities.speeds.gop_per_second.nibble,
            products: products(abilities.speeds),
            host_id: self.loader.host_id.clone(),
            pid: std::process::id(),
            platform: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            kv_types: abilities.kv_types.into_iter().map(i32::from).collect(),
            instance: self.loader.instance,
            host: abilities.host.map(|host| host_part(host, self.loader.ledger.part())),
            features: self.features().map(i32::from).collect(),
            node: self.node(),
            disk: self.disks.last(),
        }
    }

    /// The memory of the node that this worker is a stage of.
    fn node(&self) -> Option<NodePart> {
        let NodeMemory { node, stages, limit, granted, own } = self.loader.ledger.node()?;
        Some(NodePart {
            node,
            stages: stages as u32,
            memory_limit: limit.stage,
            memory_granted: granted.stage,
            memory_own: own.stage,
            host_limit: limit.host,
            host_granted: granted.host,
            host_own: own.host,
        })
    }

    /// The answer to a heartbeat.
    pub fn health(&self, coordinator_id: &str, epoch: u64) -> HealthReply {
        let mut inner = self.inner();
        let now = Instant::now();
        inner.session.heartbeat(now, coordinator_id, epoch);
        let reading = inner.meter.read(now);
        let [weight_bytes, state_bytes] = held(&inner);
        let held_layers = stage(&inner).map(|(key, _)| {
            let (model, layers) = key.place();
            let model = model.as_bytes().to_vec().into();
            HeldLayers { model, begin: layers.start, end: layers.end }
        });
        let resident = fresh(&self.readings.resident, now, memory::resident_bytes);
        let [memory_used, memory_peak] = resident.unwrap_or_default();
        let prefix_records = self.prefixes_used().map(|Used { ram, disk, bundles }| {
            PrefixRecords { ram_bytes: ram, disk_bytes: disk, bundles }
        });
        let experts = reading.experts;
        let session = &inner.session;
        // An epoch of another coordinator means nothing here, and might be the same number.
        let is_owner = session.owner() == Some(coordinator_id);
        let running = session.phase() == Phase::Running;
        HealthReply {
            epoch: if is_owner { session.epoch() } else { 0 },
            phase: session.phase().into(),
            draining: session.draining(),
            failure: session.failure().map_or_else(String::new, |f| f.reason.clone()),
            ubatches_done: reading.ubatches_done,
            busy_us: reading.busy_us,
            lane_us: reading.lane_us,
            computing_us: if running { reading.computing_us } else { 0 },
            queue_len: if running { reading.queue_len } else { 0 },
            wire_bytes_in: reading.wire_bytes_in,
            wire_bytes_out: reading.wire_bytes_out,
            memory_used,
            memory_limit: self.loader.ledger.part().stage,
            owner: session.owner().map_or_else(String::new, shown),
            memory_peak,
            weight_bytes,
            state_bytes,
            held_layers,
            instance: self.loader.instance,
            prefix_records,
            expert_rows: experts.device_rows,
            host_expert_rows: experts.host_rows,
            copied_expert_rows: experts.copy_rows,
            expert_bytes_sent: experts.sent_bytes,
            expert_wait_us: experts.host_waited_us,
            host_expert_us: experts.host_computed_us,
            node: self.node(),
            disk: self.disks.last(),
            host_expert_bytes: stage(&inner).map_or(0, |(_, stage)| stage.loaded.facts.host_bytes),
        }
    }
}

/// The loaded stage, and its key.
fn stage(inner: &Inner) -> Option<(&StageKey, &ReadyStage)> {
    let resident = inner.resident.as_ref().filter(|resident| resident.executor.is_alive())?;
    Some((&resident.key, resident.stage.as_ref()?))
}

/// Bytes of the loaded stage's weights and states; 0 without a stage.
fn held(inner: &Inner) -> [u64; 2] {
    let facts = stage(inner).map(|(_, stage)| &stage.loaded.facts);
    facts.map_or([0, 0], |facts| [facts.weight_bytes, facts.state_bytes])
}

/// Speeds of the classes of products that `gop_per_second` is not about; `None`: it is about all.
fn products(speeds: Speeds) -> Option<ProductSpeeds> {
    let ByClass { nibble: _, halves, byte, float } = speeds.gop_per_second;
    let differ = speeds.gop_per_second.common().is_none();
    differ.then_some(ProductSpeeds { q6_k: halves, q8_0: byte, f16: float })
}

/// What the host does beside a GPU. Its memory is the stage's where there is none of its own in the worker's `part`.
fn host_part(host: HostAbility, part: Amount) -> HostPart {
    let HostAbility { speeds, sent, experts_before } = host;
    let is_shared = part.host == 0;
    HostPart {
        memory_limit: if is_shared { part.stage } else { part.host },
        is_shared,
        gb_per_second: speeds.gb_per_second,
        gop_per_second: speeds.gop_per_second.nibble,
        products: products(speeds),
        experts_before,
        sent_gb_per_second: sent.gb_per_second,
        sent_beside: sent.is_beside,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::backend::measure::Sending;

    use super::*;

    #[test]
    fn the_system_is_asked_again_only_after_a_while() {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        let read = || Some(ASKED.fetch_add(1, Ordering::SeqCst));
        let (reading, t0) = (Reading::default(), Instant::now());
        for _ in 0..1000 {
            assert_eq!(fresh(&reading, t0, read), Some(0));
        }
        assert_eq!(fresh(&reading, t0 + FRESH, read), Some(1));
        assert_eq!(ASKED.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn classes_are_named_where_they_differ() {
        let told = |gop_per_second| products(Speeds { gb_per_second: 60.0, gop_per_second });
        assert_eq!(told(ByClass::all(900.0)), None, "--speed, for one");
        let measured = ByClass { nibble: 900.0, halves: 800.0, byte: 700.0, float: 250.0 };
        assert_eq!(told(measured), Some(ProductSpeeds { q6_k: 800.0, q8_0: 700.0, f16: 250.0 }));
    }

    #[test]
    fn a_host_has_memory_of_its_own_or_the_stages() {
        let memory = |stage, host| {
            let speeds = Speeds { gb_per_second: 60.0, gop_per_second: ByClass::all(900.0) };
            let sent = Sending { gb_per_second: 25.0, is_beside: true };
            let ability = HostAbility { speeds, sent, experts_before: None };
            let part = host_part(ability, Amount { stage, host });
            assert_eq!((part.sent_gb_per_second, part.sent_beside), (25.0, true));
            (part.memory_limit, part.is_shared)
        };
        assert_eq!(memory(8 << 30, 64 << 30), (64 << 30, false));
        assert_eq!(memory(8 << 30, 0), (8 << 30, true));
    }
}
