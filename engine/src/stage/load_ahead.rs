//! Loading what the next stage lacks while this one still computes.

use std::ops::Range;
use std::sync::Arc;

use super::kept::{KeptFor, KeptWeights};
use super::load::{Needs, load_weights, loader};
use crate::device::Device;
use crate::spec::{Described, ModelError};
use crate::weights::{ExpertsPlace, TensorSource};

/// A stage whose weights are loaded before it is built.
pub struct NextStage {
    /// Layers of the next stage.
    pub layers: Range<usize>,
    /// Layers of the present stage, from which the next one is built.
    pub has: Range<usize>,
    /// Whether blocks of drafts are loaded, as in [`StageConfig::own_drafts`](super::StageConfig::own_drafts).
    pub own_drafts: bool,
    /// Layers with experts on the host, as in [`StageConfig::host_experts`](super::StageConfig::host_experts).
    pub host_experts: u32,
}

impl KeptWeights {
    /// Loads what the `next` stage lacks that is built of one which still computes ([`KeptWeights::absorb`]). `progress` is
    /// told the bytes of each tensor as it is taken.
    ///
    /// # Errors
    /// As [`Stage::load`](super::Stage::load).
    pub fn load_ahead(
        described: &Described<'_>,
        source: Arc<dyn TensorSource>,
        next: NextStage,
        device: &Device,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, ModelError> {
        let Described { model, spec } = described;
        let NextStage { layers, has, own_drafts, host_experts } = &next;
        let (layers, own_drafts) = (layers, *own_drafts);
        let mut ahead = Self::default();
        let experts = ExpertsPlace::new(device, *host_experts)?;
        let (model_hash, home) = (blake3::hash(&model.header_bytes()), device.home());
        ahead.retain_for(spec, KeptFor { model_hash, home, experts, layers, own_drafts });
        let mut loader = loader(model, spec, &source, device, experts, progress);
        let needs = Needs { model, spec, layers, own_drafts, has };
        load_weights(needs, &source, &mut loader, &mut ahead)?;
        Ok(ahead)
    }
}
