//! A loaded stage of the engine, as the worker runs it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_engine::batch::{Boundary, PageId, SlotId, UBatch};
use brigade_engine::device::ExpertCounts;
use brigade_engine::error::SnapshotError;
use brigade_engine::stage::{Begun, Stage};
use brigade_engine::state::{BlockCopy, BlockSize, CopyOf, CopyRoom, StageCopy, Written};

use super::learning::Learner;
use crate::backend::{
    CopyFacts, FindPart, FindSource, Finished, KeptWeights, StageError, StageRunner, StageShape,
};
use crate::machine::turns::{Turn, Turns};

/// The engine's layers and states, behind [`StageRunner`].
pub(super) struct EngineStage {
    stage: Stage,
    /// Ubatches that were begun and are not finished, in their order.
    begun: VecDeque<Begun>,
    turns: Option<Arc<Turns>>,
    /// Whether its device computes while the thread goes on.
    computes_on: bool,
    /// Keeps which experts it uses; `None`: nobody counts that.
    learner: Option<Learner>,
}

impl EngineStage {
    /// A runner that takes turns where there are other stages.
    pub(super) fn new(stage: Stage, turns: Option<Arc<Turns>>, computes_on: bool) -> Self {
        Self { stage, begun: VecDeque::new(), turns, computes_on, learner: None }
    }

    /// The same, which keeps what it learns of its experts.
    pub(super) fn learning(self, learner: Option<Learner>) -> Self {
        Self { learner, ..self }
    }
}

/// The turn; without locks a stage computes at any time.
pub(super) fn taken(turns: &Arc<Turns>) -> Option<Turn> {
    turns.take().inspect_err(|error| tracing::error!(%error, "the lock of this machine's stages cannot be taken: stages compute at the same time")).ok()
}

impl StageRunner for EngineStage {
    fn expert_counts(&self) -> ExpertCounts {
        self.stage.expert_counts()
    }

    fn shape(&self) -> StageShape {
        let (spec, layers) = (self.stage.spec(), self.stage.layers());
        let width = |cut: usize| spec.boundary(cut).width() as u32;
        let is_last = layers.end == spec.n_layer();
        StageShape {
            output_exact: !is_last && spec.boundary(layers.end).exact,
            input_width: (layers.start > 0).then(|| width(layers.start)),
            output_width: (!is_last).then(|| width(layers.end)),
            n_vocab: spec.n_vocab as u32,
        }
    }

    fn may_begin(&self, ubatch: &UBatch) -> bool {
        // Where others wait, each has one ubatch in its turn.
        let is_wanted = || self.turns.as_ref().is_some_and(|turns| turns.is_wanted());
        let is_shared = self.computes_on && !self.begun.is_empty() && is_wanted();
        self.stage.may_begin(ubatch) && !is_shared
    }

    fn computes_on(&self) -> bool {
        self.computes_on
    }

    fn take_turn(&mut self) -> Option<Turn> {
        self.turns.as_ref().and_then(taken)
    }

    fn begin(&mut self, ubatch: &UBatch, input: Option<Boundary>) -> Result<(), StageError> {
        self.begun.push_back(self.stage.begin(ubatch, input)?);
        Ok(())
    }

    fn is_done_within(&mut self, within: Duration) -> bool {
        self.begun.front_mut().is_none_or(|begun| begun.is_done_within(within))
    }

    fn finish(&mut self) -> Result<Finished, StageError> {
        let begun = self.begun.pop_front().ok_or("no ubatch was begun")?;
        let finished = self.stage.finish(begun)?;
        if !finished.wants_drafts() {
            return Ok(Finished::without_drafts(self.stage.draft_behind(finished)?));
        }
        let drawn = Instant::now();
        let turn = self.take_turn();
        let begun = Instant::now();
        let output = self.stage.draft_behind(finished)?;
        drop(turn);
        Ok(Finished { output, drafting: begun.elapsed(), waited: begun - drawn })
    }

    fn snapshot(&self, slot: u32) -> Result<Vec<u8>, SnapshotError> {
        self.stage.snapshot(SlotId(slot))
    }

    fn restore(&mut self, slot: u32, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.stage.restore(SlotId(slot), bytes)
    }

    fn reset(&mut self) -> Result<(), StageError> {
        self.begun.clear();
        self.stage.reset();
        Ok(())
    }

    fn into_kept(self: Box<Self>) -> KeptWeights {
        let Self { stage, learner, .. } = *self;
        drop(learner);
        stage.into_kept()
    }

    fn copy_facts(&self) -> Option<CopyFacts> {
        let layers = self.stage.layers();
        Some(CopyFacts {
            kind: self.stage.copy_kind(),
            layers: layers.start as u32..layers.end as u32,
            prints: self.stage.prints().iter().map(|(_, print)| *print).collect(),
            has_slots: self.stage.has_slots(),
        })
    }

    fn places(&self, slot: u32) -> Option<(Vec<PageId>, u32)> {
        self.stage.places(SlotId(slot)).map(|(blocks, len)| (blocks.to_vec(), len))
    }

    fn copy_new(
        &self,
        slot: u32,
        len: u32,
        plane: Option<SlotId>,
        first_page: u32,
        to: CopyRoom<'_>,
    ) -> Result<StageCopy, SnapshotError> {
        self.stage.copy_new(SlotId(slot), len, plane, first_page, to)
    }

    fn block_sizes(&self, len: u32) -> Vec<BlockSize> {
        self.stage.block_sizes(len)
    }

    fn copy_part(&self, slot: u32, len: u32, of: &CopyOf) -> Result<Vec<BlockCopy>, SnapshotError> {
        self.stage.copy_part(SlotId(slot), len, of)
    }

    fn put_part(
        &mut self,
        slot: u32,
        len: u32,
        part: FindPart<'_, '_>,
    ) -> Result<Vec<(u32, u32, Written)>, SnapshotError> {
        self.stage.put_part(SlotId(slot), len, part)
    }

    fn put_back(
        &mut self,
        slot: u32,
        len: u32,
        tokens: &[u32],
        source: FindSource<'_, '_>,
    ) -> Result<(), SnapshotError> {
        self.stage.put_back(SlotId(slot), len, tokens, source)
    }
}
