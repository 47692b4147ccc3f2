//! What a worker says of itself: its capabilities, and the heartbeat.

use std::time::Instant;

use brigade_proto::control::{Capabilities, HealthReply, Phase, WireType};

use super::{Inner, Worker};
use crate::memory;

impl Worker {
    /// What this worker is and can do, now.
    pub fn capabilities(&self) -> Capabilities {
        let abilities = self.loader.backend.abilities().clone();
        let limit = self.loader.memory_limit;
        let [weights, states] = held(&self.inner());
        let held = weights + states;
        let free = memory::available_bytes().map_or(limit, |free| limit.min(free + held));
        let wire_types = [WireType::F32, WireType::F16, WireType::Bf16, WireType::Q80];
        Capabilities {
            architectures: abilities.architectures,
            quant_types: abilities.quant_types,
            wire_types: wire_types.into_iter().map(i32::from).collect(),
            kernel_tables: abilities.kernel_tables,
            kernels: abilities.kernels,
            threads: abilities.threads,
            memory_limit: limit,
            memory_free: free,
            gb_per_second: abilities.gb_per_second,
            gop_per_second: abilities.gop_per_second,
            host_id: self.loader.host_id.clone(),
            pid: std::process::id(),
            platform: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            kv_types: abilities.kv_types.into_iter().map(i32::from).collect(),
        }
    }

    /// The heartbeat.
    pub fn health(&self, coordinator_id: &str, epoch: u64) -> HealthReply {
        let mut inner = self.inner();
        let now = Instant::now();
        inner.session.heartbeat(now, coordinator_id, epoch);
        let reading = inner.meter.read(now);
        let [weight_bytes, state_bytes] = held(&inner);
        let [memory_used, memory_peak] = memory::resident_bytes().unwrap_or_default();
        let session = &inner.session;
        let running = session.phase() == Phase::Running;
        HealthReply {
            epoch: session.epoch(),
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
            memory_limit: self.loader.memory_limit,
            owner: session.owner().unwrap_or_default().to_owned(),
            memory_peak,
            weight_bytes,
            state_bytes,
        }
    }
}

/// Bytes of the loaded stage's weights and states; 0 where there is none.
fn held(inner: &Inner) -> [u64; 2] {
    let facts = inner.resident.as_ref().map(|r| &r.loaded.facts);
    facts.map_or([0, 0], |facts| [facts.weight_bytes, facts.state_bytes])
}
