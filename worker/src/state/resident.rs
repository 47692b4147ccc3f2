//! What a worker has in memory: a loaded stage, or the rest of one.

use brigade_proto::control::LoadedFacts;

use crate::backend::StageShape;
use crate::executor::Executor;
use crate::loading::load::Loaded;
use crate::loading::order::{Order, StageKey};
use crate::machine::ledger::Held;
use crate::weights::cache::Pinned;

/// The contents of memory: a loaded stage, or the weights that were loaded before loading was given up.
pub(super) struct Resident {
    pub key: StageKey,
    pub executor: Executor,
    pub stage: Option<ReadyStage>,
    /// The memory that was granted for it.
    pub held: Held,
    /// Its blobs in the cache, if it was loaded from there.
    #[expect(dead_code, reason = "it is held, not read")]
    pub pinned: Option<Pinned>,
}

/// A stage that is loaded whole.
pub(super) struct ReadyStage {
    pub shape: StageShape,
    pub loaded: Loaded,
}

impl Resident {
    /// Whether it is the stage of an order, as it is.
    pub fn serves(&self, order: &Order, host_id: &str) -> bool {
        self.executor.is_alive() && self.stage.is_some() && self.key.serves(order, host_id)
    }
}

impl ReadyStage {
    /// Its facts, for the order that it serves; `seconds`: how long loading took.
    pub fn facts(&self, order: &Order, seconds: f64) -> LoadedFacts {
        let facts = &self.loaded.facts;
        LoadedFacts {
            source: self.loaded.source.into(),
            weight_bytes: facts.weight_bytes,
            state_bytes: facts.state_bytes,
            kernels: facts.kernels.clone(),
            threads: facts.threads,
            seconds,
            metadata_hash: order.header.0.as_bytes().to_vec().into(),
            input_width: self.shape.input_width.unwrap_or(0),
            output_width: self.shape.output_width.unwrap_or(0),
            read_bytes: self.loaded.read_bytes,
            kept_layers: self.loaded.kept_layers as u32,
        }
    }
}
