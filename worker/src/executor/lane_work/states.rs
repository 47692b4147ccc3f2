//! States of a lane's sequences: read, written, found again and forgotten, between ubatches.

use std::panic::{AssertUnwindSafe, catch_unwind};

use brigade_engine::batch::CopyName;
use brigade_engine::error::SnapshotError;
use brigade_proto::failure::{Failure, FailureKind};

use super::{LaneWork, Unusable, panic_text};
use crate::copies::parting::Keep;
use crate::copies::put::{PutBack, PutPart};
use crate::copies::stage_copy::{Copied, Wanted};
use crate::executor::changes::Unchanged;
use crate::executor::jobs::{Answer, HeldFound};
use crate::executor::output::LaneRun;
use crate::executor::requests::Requests;
use crate::executor::wire::snapshot_failure;

impl LaneWork<'_> {
    /// Reads a sequence's state.
    ///
    /// # Errors
    /// There is no such sequence, or the lane is over.
    pub fn snapshot(&self, slot: u32) -> Result<Vec<u8>, Failure> {
        let read = || self.runner.snapshot(slot);
        transfer(self.lane.as_ref(), &self.requests, slot, "snapshot", read)
    }

    /// Replaces a sequence's state, and answers with the outcome.
    ///
    /// # Errors
    /// The stage cannot be used again.
    pub fn restore(&mut self, slot: u32, bytes: &[u8], answer: Answer<()>) -> Result<(), Unusable> {
        let write = || self.runner.restore(slot, bytes);
        let done = transfer(self.lane.as_ref(), &self.requests, slot, "restore", write);
        self.written(done, answer)
    }

    /// The sequences of an earlier line that the stage still holds.
    pub fn find_held(&mut self, names: &[CopyName]) -> HeldFound {
        let up_to = self.taker.find(names);
        HeldFound { facts: self.taker.facts().cloned(), up_to }
    }

    /// A part of a sequence's state, and the facts that it depends on.
    ///
    /// # Errors
    /// As [`LaneWork::snapshot`]; StaleEpoch where the slot must be `unchanged` and is not.
    pub fn copy(
        &self,
        wanted: Option<&Wanted>,
        unchanged: Option<Unchanged>,
    ) -> Result<Copied, Failure> {
        let slot = wanted.map_or(0, |wanted| wanted.slot);
        if let Some(unchanged) = unchanged {
            self.changes.check(slot, unchanged)?;
        }
        let copy = || self.taker.copied(self.runner, wanted);
        transfer(self.lane.as_ref(), &self.requests, slot, "copy", copy)
    }

    /// Writes a part of a sequence's state, and answers with the last ubatch that changed its slot.
    ///
    /// # Errors
    /// As [`LaneWork::restore`].
    pub fn put_part(
        &mut self,
        part: &PutPart,
        unchanged: Unchanged,
        answer: Answer<Unchanged>,
    ) -> Result<(), Unusable> {
        let done = self.changes.check(part.slot, unchanged).and_then(|()| {
            let write = || self.taker.put_part(self.runner, part);
            transfer(self.lane.as_ref(), &self.requests, part.slot, "part of a state", write)
        });
        let now = self.changes.now(part.slot);
        self.written(done.map(|()| now), answer)
    }

    /// Gives a sequence the state of a checkpoint, and answers with the outcome.
    ///
    /// # Errors
    /// As [`LaneWork::restore`].
    pub fn put_back(
        &mut self,
        put: &PutBack,
        unchanged: Unchanged,
        answer: Answer<()>,
    ) -> Result<(), Unusable> {
        let done = self.changes.check(put.slot, unchanged).and_then(|()| {
            let write = || self.taker.put_back(self.runner, put);
            transfer(self.lane.as_ref(), &self.requests, put.slot, "checkpoint", write)
        });
        self.written(done, answer)
    }

    /// Forgets all sequences, and keeps of their states what `keep` says.
    ///
    /// # Errors
    /// Compute: the stage cannot be used again.
    pub fn reset(&mut self, keep: Option<&Keep>) -> Result<(), Failure> {
        self.lane = None;
        let failed = |why: String| Failure::refusal(FailureKind::Compute, why);
        let reset = || {
            self.taker.reset(self.runner, keep);
            self.runner.reset()
        };
        match catch_unwind(AssertUnwindSafe(reset)) {
            Ok(result) => result.map_err(|error| failed(error.to_string())),
            Err(panic) => Err(failed(panic_text("resetting", &*panic))),
        }
    }

    /// Answers with the outcome of replacing a state.
    fn written<T>(&mut self, done: Result<T, Failure>, answer: Answer<T>) -> Result<(), Unusable> {
        let failure = done.as_ref().err().filter(|failure| failure.kind() == FailureKind::Compute);
        let failure = failure.cloned();
        let _ = answer.send(done);
        let Some(failure) = failure else { return Ok(()) };
        let Some(lane) = self.lane.take() else { return Ok(()) };
        let _ = lane.failed.send(failure);
        Err(Unusable)
    }
}

/// Reads or writes a sequence's state, as far as there is a lane whose sequence it could be.
fn transfer<T>(
    lane: Option<&LaneRun>,
    requests: &Requests,
    slot: u32,
    doing: &str,
    work: impl FnOnce() -> Result<T, SnapshotError>,
) -> Result<T, Failure> {
    let Some(lane) = lane.filter(|lane| !lane.cancel.is_cancelled()) else {
        return Err(Failure::refusal(FailureKind::StaleEpoch, "the lane is over"));
    };
    let request = requests.of(slot);
    let what = format!("{doing} of stage {}, slot {slot}", lane.stage);
    let result = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| snapshot_failure(&error, &what)),
        Err(panic) => Err(Failure::refusal(FailureKind::Compute, panic_text(&what, &*panic))),
    };
    match &result {
        Ok(_) => tracing::debug!(slot, request, "{doing} of a sequence"),
        Err(failure) => tracing::warn!(slot, request, %failure, "{doing} was refused"),
    }
    result
}
