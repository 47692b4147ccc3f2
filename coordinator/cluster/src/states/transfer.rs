//! Reads and writes the states of sequences on all stages of a line, and asks what the stages hold.

use std::sync::Arc;

use brigade_engine::batch::{CopyName, SlotId};
use brigade_engine::state::{merge_snapshots, select_layers};
use brigade_line::handle::{StageExperts, StageResident};
use brigade_line::stages::prefix_names::{Key, Names};
use brigade_line::stages::states::{
    Asked, Choice, Found, PrefixChoice, PutSlot, Sought, StateAccess,
};
use brigade_plan::Checkpoint;
use brigade_proto::control::{
    RestoreHead, RestoreRequest, SnapshotRequest, StateChunk, restore_request,
};
use brigade_proto::limits::CHUNK_BYTES;
use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::members::conn::{Conn, Present, WorkerError};
use crate::members::placed_stage::{Identity, PlacedStage};

/// Access to the states of a line's sequences, over its workers.
#[derive(Clone, Debug)]
pub struct StageStates {
    pub(crate) identity: Identity,
    pub(crate) stages: Vec<PlacedStage>,
    /// Workers beside the line that have states of layers that they had before.
    pub(crate) beside: Vec<Conn>,
    /// All workers that are connected to the server now, those of the line and of other lines among them.
    pub(crate) present: Present,
    /// Where copies of states go.
    pub(crate) checkpoint: Checkpoint,
    /// Whether values lose bits between workers.
    pub(crate) cuts_lose_bits: bool,
    /// The hash of each layer's line, which keys of records depend on.
    pub(crate) lines: Arc<OnceCell<Arc<Vec<Key>>>>,
}

impl StageStates {
    async fn read_all(&self, slot: SlotId) -> Result<Vec<u8>, String> {
        let mut reads = JoinSet::new();
        for stage in self.stages.iter().cloned() {
            let identity = self.identity.clone();
            reads.spawn(async move { stage.conn.while_alive(read(&stage, identity, slot)).await });
        }
        let mut parts = Vec::new();
        while let Some(part) = reads.join_next().await {
            parts.push(part.map_err(aborted)?.map_err(|e| e.to_string())?);
        }
        let merged = tokio::task::spawn_blocking(move || merge_snapshots(&parts)).await;
        merged.map_err(aborted)?.map_err(|e| e.to_string())
    }

    async fn write_all(&self, slot: SlotId, snapshot: Vec<u8>) -> Result<(), String> {
        let snapshot = Bytes::from(snapshot);
        let mut writes = JoinSet::new();
        for stage in self.stages.iter().cloned() {
            let (identity, snapshot) = (self.identity.clone(), snapshot.clone());
            writes.spawn(async move {
                let layers = stage.layers.clone();
                let part = tokio::task::spawn_blocking(move || select_layers(&snapshot, layers));
                let part = part.await.map_err(aborted)?.map_err(|e| e.to_string())?;
                let write = write(&stage, identity, slot, part.into());
                stage.conn.while_alive(write).await.map_err(|e| e.to_string())
            });
        }
        while let Some(written) = writes.join_next().await {
            written.map_err(aborted)??;
        }
        Ok(())
    }

    async fn memory_of_all(&self) -> Result<Vec<StageResident>, String> {
        let mut all = Vec::new();
        for stage in &self.stages {
            let conn = &stage.conn;
            let health = conn.health(0).await.map_err(|why| format!("{}: {why}", conn.name()))?;
            all.push(StageResident {
                weight_bytes: health.weight_bytes,
                state_bytes: health.state_bytes,
                resident_bytes: health.memory_used,
                peak_bytes: health.memory_peak,
                experts: StageExperts {
                    device_rows: health.expert_rows,
                    copied_rows: health.copied_expert_rows,
                    host_rows: health.host_expert_rows,
                    sent_bytes: health.expert_bytes_sent,
                    host_waited_us: health.expert_wait_us,
                    host_computed_us: health.host_expert_us,
                },
            });
        }
        Ok(all)
    }
}

impl StateAccess for StageStates {
    fn takes_copies(&self) -> bool {
        self.checkpoint != Checkpoint::Off
    }

    fn read(&self, slot: SlotId) -> Asked<'_, Vec<u8>> {
        Box::pin(self.read_all(slot))
    }

    fn write(&self, slot: SlotId, snapshot: Vec<u8>) -> Asked<'_, ()> {
        Box::pin(self.write_all(slot, snapshot))
    }

    fn memory(&self) -> Asked<'_, Vec<StageResident>> {
        Box::pin(self.memory_of_all())
    }

    fn find_copies<'a>(&'a self, sought: &'a [Sought]) -> Found<'a> {
        Box::pin(self.find_all(sought))
    }

    fn put_back(
        &self,
        to: PutSlot,
        name: CopyName,
        tokens: Vec<u32>,
        choice: Choice,
    ) -> Asked<'_, u64> {
        Box::pin(self.put_all_back(to, name, tokens, choice))
    }

    fn keeps_prefixes(&self) -> bool {
        self.all_keep_prefixes()
    }

    fn find_prefix<'a>(&'a self, names: &'a Names) -> Asked<'a, Option<PrefixChoice>> {
        Box::pin(self.find_names(names))
    }

    fn notices_changes(&self) -> bool {
        self.all_notice_changes()
    }

    fn save_prefix<'a>(
        &'a self,
        slot: SlotId,
        unchanged_since: Option<u64>,
        names: &'a Names,
    ) -> Asked<'a, u64> {
        Box::pin(self.save_names(slot, unchanged_since, names))
    }

    fn load_prefix<'a>(
        &'a self,
        to: PutSlot,
        names: &'a Names,
        choice: PrefixChoice,
    ) -> Asked<'a, u64> {
        Box::pin(self.load_names(to, names, choice))
    }

    fn forget_prefix<'a>(&'a self, names: &'a Names) -> Asked<'a, ()> {
        Box::pin(self.forget_names(names))
    }

    fn keep_prefixes_of(&self, realm: Key, owners: Vec<Key>) -> Asked<'_, ()> {
        Box::pin(self.keep_names_of(realm, owners))
    }
}

async fn read(
    stage: &PlacedStage,
    identity: Identity,
    slot: SlotId,
) -> Result<Vec<u8>, WorkerError> {
    let conn = &stage.conn;
    let broken = |reason: &str| WorkerError::Lost {
        worker: conn.name().to_string(),
        reason: format!("its snapshot {reason}"),
    };
    let Identity { epoch, coordinator_id } = identity;
    let request = SnapshotRequest { epoch, coordinator_id, slot: slot.0 };
    let failed = |status: tonic::Status| conn.error(&status);
    let mut chunks = conn.control().snapshot(request).await.map_err(failed)?.into_inner();
    let mut snapshot = Incoming { max_bytes: stage.max_sequence_bytes, ..Incoming::default() };
    while let Some(chunk) = chunks.message().await.map_err(failed)? {
        snapshot.take(&chunk).map_err(|why| broken(&why))?;
    }
    snapshot.finish().map_err(|why| broken(&why))
}

/// A snapshot as it comes. Memory grows with the bytes that are here, never with those announced.
#[derive(Debug, Default)]
struct Incoming {
    /// Limit of a sequence's bytes on this stage, by the plan.
    max_bytes: u64,
    total: u64,
    bytes: Vec<u8>,
}

impl Incoming {
    fn take(&mut self, chunk: &StateChunk) -> Result<(), String> {
        if self.bytes.is_empty() {
            self.total = chunk.total_bytes;
        }
        if self.total > self.max_bytes {
            let (total, max) = (self.total, self.max_bytes);
            return Err(format!("has {total} bytes, a sequence has {max} there at most"));
        }
        if chunk.data.is_empty() {
            return Err("has an empty piece".to_string());
        }
        let (more, left) = (chunk.data.len(), self.total.saturating_sub(self.bytes.len() as u64));
        if more as u64 > left {
            return Err("has more bytes than announced".to_string());
        }
        if self.bytes.capacity() - self.bytes.len() < more {
            // As much again as has come, but never more than is announced.
            let room = (self.bytes.len().max(more) as u64).min(left) as usize;
            let refused = |_| format!("has {} bytes, for which there is no memory", self.total);
            self.bytes.try_reserve_exact(room).map_err(refused)?;
        }
        self.bytes.extend_from_slice(&chunk.data);
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>, String> {
        if self.bytes.is_empty() || self.bytes.len() as u64 != self.total {
            return Err(format!("ended after {} of {} bytes", self.bytes.len(), self.total));
        }
        Ok(self.bytes)
    }
}

async fn write(
    stage: &PlacedStage,
    identity: Identity,
    slot: SlotId,
    part: Bytes,
) -> Result<(), WorkerError> {
    let Identity { epoch, coordinator_id } = identity;
    let total_bytes = part.len() as u64;
    let head = RestoreHead { epoch, coordinator_id, slot: slot.0, total_bytes };
    let data = (0..part.len()).step_by(CHUNK_BYTES).map(move |begin| {
        restore_request::Part::Data(part.slice(begin..part.len().min(begin + CHUNK_BYTES)))
    });
    let parts = std::iter::once(restore_request::Part::Head(head)).chain(data);
    let requests = parts.map(|part| RestoreRequest { part: Some(part) });
    let call = stage.conn.control().restore(tokio_stream::iter(requests)).await;
    call.map(|_| ()).map_err(|status| stage.conn.error(&status))
}

fn aborted(error: tokio::task::JoinError) -> String {
    format!("a task ended without a result: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(total_bytes: u64, n: usize) -> StateChunk {
        StateChunk { total_bytes, data: vec![7; n].into() }
    }

    #[tokio::test]
    async fn a_task_that_is_ended_is_said_to_have_no_result() {
        let task = tokio::spawn(std::future::pending::<()>());
        task.abort();
        let why = aborted(task.await.unwrap_err());
        assert!(why.contains("without a result") && why.contains("cancelled"), "{why}");
    }

    #[test]
    fn memory_follows_the_bytes_that_came() {
        let max_bytes = 1 << 40;
        let mut incoming = Incoming { max_bytes, ..Incoming::default() };
        incoming.take(&chunk(max_bytes, 1000)).unwrap();
        incoming.take(&chunk(max_bytes, 1000)).unwrap();
        assert!(incoming.bytes.capacity() <= 4000, "{}", incoming.bytes.capacity());
        assert!(incoming.finish().unwrap_err().contains("2000 of 1099511627776"));
        let mut whole = Incoming { max_bytes: 5000, ..Incoming::default() };
        for n in [1, 1999, 3000] {
            whole.take(&chunk(5000, n)).unwrap();
            assert!(whole.bytes.capacity() <= 5000);
        }
        assert_eq!(whole.finish().unwrap().len(), 5000);
    }

    #[test]
    fn a_worker_that_claims_more_than_the_plan_is_refused_before_memory_is() {
        let mut incoming = Incoming { max_bytes: 100, ..Incoming::default() };
        let why = incoming.take(&chunk(u64::MAX, 1)).unwrap_err();
        assert!(why.contains("18446744073709551615") && why.contains("100"), "{why}");
        assert_eq!(incoming.bytes.capacity(), 0);
        assert!(incoming.take(&chunk(100, 0)).is_err());
        assert!(incoming.take(&chunk(100, 101)).is_err());
    }
}
