//! A worker beside the line: it has no layers any more, but still holds states of its former ones.

use std::time::Instant;

use brigade_proto::failure::Failure;
use brigade_proto::tls::KeyId;

use super::{Resident, Worker};
use crate::copies::parting::Keep;

impl Worker {
    /// Takes a place beside a line: the stage is freed, and the parting copies of its sequences' states stay for the
    /// workers with these keys, until the worker is unloaded.
    ///
    /// # Errors
    /// The session's refusals; Compute where the stage is stuck, and the worker ends.
    pub async fn retire(
        &self,
        coordinator_id: &str,
        epoch: u64,
        line_keys: Vec<KeyId>,
    ) -> Result<(), Failure> {
        let ahead = {
            let mut inner = self.inner();
            inner.session.retire(Instant::now(), coordinator_id, epoch)?;
            inner.begin_epoch(&self.stop);
            inner.beside = Some(line_keys);
            inner.ahead.take()
        };
        self.let_go(ahead).await;
        let _alone = self.stage_change.lock().await;
        let resident = {
            let mut inner = self.inner();
            let current = inner.session.is_at(coordinator_id, epoch);
            if current { inner.resident.take() } else { None }
        };
        if let Some(resident) = resident {
            let keep = self.keep(&resident, self.copies.nbytes(), false);
            let reset = resident.executor.reset(Some(keep)).await;
            // One that failed is freed like any other: it has no states that are worth keeping.
            let _ = reset.map_err(|stuck| self.end_with(stuck))?;
            self.free(resident).await?;
        }
        let state_bytes = self.copies.parting.nbytes();
        tracing::info!(
            epoch,
            state_bytes,
            "the retired stage stays in memory until the new line has its states"
        );
        Ok(())
    }

    /// How a stage keeps states when it is reset. `others`: bytes of memory beside the stage that are taken, now or
    /// soon.
    pub(super) fn keep(&self, resident: &Resident, others: u64, stays: bool) -> Keep {
        let facts = resident.stage.as_ref().map(|stage| &stage.loaded.facts);
        let held = facts.map_or(0, |facts| facts.weight_bytes.saturating_add(facts.state_bytes));
        let limit = self.loader.ledger.limit().stage;
        let room = limit.saturating_sub(held).saturating_sub(others);
        let states = facts.map_or(0, |facts| facts.state_bytes);
        self.copies.parting.allow(&self.loader.ledger, states, room);
        Keep { parting: self.copies.parting.clone(), stays }
    }
}
