//! Where a stage's threads and weights lie on a machine with several NUMA nodes. It is chosen once at start, and read back from
//! the system when weights are packed. The log says both.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::machine::numa::{self, Places};
use crate::machine::topology::Topology;

/// Places of the host's threads and their weights, if they have some; the log says why not, and what the cgroup's quota is.
pub(super) fn places(config: &Config, threads: usize) -> Option<Places> {
    let topology = Topology::of_this_machine();
    if let Some(quota) = topology.quota {
        let quota = format!("{quota:.2}");
        tracing::info!(quota, threads, "the cgroup's quota is the time of so many cores");
    }
    let places = Places::of(config.numa, &topology, &config.cpus, threads);
    match &places {
        Ok(places) => {
            tracing::info!(places = places.describe(), "threads are pinned to NUMA nodes")
        }
        Err(why) => tracing::info!(why, "threads and weights have no places on NUMA nodes"),
    }
    places.ok()
}

/// Weights that are being packed by threads with places.
pub(super) struct Packing<'a> {
    places: &'a Places,
    before: BTreeMap<usize, u64>,
}

impl<'a> Packing<'a> {
    /// Begins before the first weights are packed. `None` where the system does not tell where memory lies.
    pub(super) fn begin(places: Option<&'a Places>) -> Option<Self> {
        Some(Self { places: places?, before: numa::bytes_by_node()? })
    }

    /// Says where the weights lie that were packed since.
    pub(super) fn end(self) {
        let Some(now) = numa::bytes_by_node() else { return };
        let bytes = numa::since(&self.before, &now);
        let (bytes_by_node, places) = (numa::describe(&bytes), self.places.describe());
        if self.places.agree_with(&bytes) {
            tracing::info!(bytes_by_node, places, "weights lie where their threads are");
        } else {
            tracing::warn!(
                bytes_by_node,
                places,
                "weights do not lie where their threads are: decode reads other nodes' memory"
            );
        }
    }
}
