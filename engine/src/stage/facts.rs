//! Memory that a loaded stage takes.

use std::collections::BTreeMap;

use super::StageFacts;
use super::head::Head;
use super::layers::LoadedBlock;
use super::own_drafts::OwnDrafts;
use crate::device::Device;
use crate::spec::ModelSpec;

/// Memory that the blocks of a stage take. Weights that several layers share count once.
pub(super) fn of(
    spec: &ModelSpec,
    blocks: &[LoadedBlock],
    head: Option<&Head>,
    own_drafts: Option<&OwnDrafts>,
    device: &Device,
) -> StageFacts {
    let [drafts, of_drafts] = own_drafts.map_or([0; 2], OwnDrafts::nbytes);
    let drafts_beside = own_drafts.map_or(0, OwnDrafts::nbytes_beside);
    let place = |block: &LoadedBlock| (spec.in_file(block.layer), block.index);
    let of_block = |block: &LoadedBlock| {
        (place(block), [block.weights.nbytes(), block.weights.block.nbytes_beside() as u64])
    };
    let weights: BTreeMap<_, [u64; 2]> = blocks.iter().map(of_block).collect();
    StageFacts {
        host_expert_bytes: weights.values().map(|[_, beside]| beside).sum::<u64>() + drafts_beside,
        weight_bytes: weights.values().map(|[all, _]| all).sum::<u64>()
            + head.and_then(|h| h.output.as_ref()).map_or(0, |output| output.nbytes() as u64)
            + drafts,
        state_bytes: blocks.iter().map(|b| b.state.nbytes()).sum::<u64>() + of_drafts,
        device: device.name().to_owned(),
        threads: device.host().pool().threads(),
    }
}
