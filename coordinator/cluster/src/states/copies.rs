//! Copies of sequences' states on the workers of a line: finds them, and restores sequences from them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use brigade_engine::batch::{CopyName, TokenMark};
use brigade_plan::Checkpoint;
use brigade_proto::copies::{CopySource, FindRequest, Found, PutBackRequest};
use brigade_proto::limits::{COPY_NAME_BYTES, MAX_CHUNK_BYTES, MAX_COPY_NAMES};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::members::conn::{Conn, WorkerError};
use crate::members::facts;
use crate::members::placed_stage::{Identity, PlacedStage};
use crate::states::choose::{self, Has};
use crate::states::transfer::StageStates;
use brigade_line::stages::states::{Choice, From, PutSlot, Sought};

/// How long workers may take to say which copies they have.
const FIND_WITHIN: Duration = Duration::from_secs(2);

/// How long a state may take to be put back; then it is computed again.
const PUT_BACK_WITHIN: Duration = Duration::from_secs(60);

impl StageStates {
    /// All workers that may have copies: those of the stages, then those beside the line.
    fn workers(&self) -> impl Iterator<Item = &Conn> {
        self.stages.iter().map(|stage| &stage.conn).chain(&self.beside)
    }

    /// For each sequence, the way to restore it; `None`: it cannot be restored. Copies of all others are dropped by
    /// the workers. A worker that does not answer has none.
    pub(crate) async fn find_all(&self, sought: &[Sought]) -> Vec<Option<Choice>> {
        let sought = &sought[..sought.len().min(MAX_COPY_NAMES)];
        let names: Vec<u8> = sought.iter().flat_map(|(name, _)| name.0).collect();
        let mut asked = JoinSet::new();
        for (i, conn) in self.workers().cloned().enumerate() {
            let Identity { epoch, coordinator_id } = self.identity.clone();
            let names = names.clone().into();
            let request = FindRequest { epoch, coordinator_id, names };
            asked.spawn(async move {
                let call = async { conn.copies().find(request).await };
                let reply = timeout(FIND_WITHIN, call).await;
                let worker = conn.name();
                match reply {
                    Ok(Ok(reply)) => (i, reply.into_inner().found),
                    Ok(Err(status)) => {
                        tracing::warn!(worker, %status, "it does not say which copies it has");
                        (i, Vec::new())
                    }
                    Err(_) => {
                        tracing::warn!(worker, "it did not say in time which copies it has");
                        (i, Vec::new())
                    }
                }
            });
        }
        let mut has: BTreeMap<usize, Vec<Has>> = BTreeMap::new();
        while let Some(answer) = asked.join_next().await {
            let Ok((worker, found)) = answer else { continue };
            for found in found {
                has.entry(found.name as usize).or_default().extend(has_of(worker, found));
            }
        }
        let stages: Vec<Range<u32>> = self.stages.iter().map(PlacedStage::layer_range).collect();
        let keeper = |stage: usize| match self.checkpoint {
            Checkpoint::Buddy => (stage + 1) % stages.len(),
            Checkpoint::Disk | Checkpoint::Off => stage,
        };
        let choice = |(i, (_, tokens)): (usize, &Sought)| {
            choose::choose(&stages, has.get(&i)?, tokens, keeper)
        };
        sought.iter().enumerate().map(choice).collect()
    }

    /// Restores the state after `tokens` to the sequence in a slot, on every stage. The sequence must be at rest and
    /// have pages of its own. Returns the bytes that went from one worker to another.
    ///
    /// # Errors
    /// A stage could not restore it. Other stages may have it then, so the sequence is to be closed.
    pub(crate) async fn put_all_back(
        &self,
        to: PutSlot,
        name: CopyName,
        tokens: Vec<u32>,
        choice: Choice,
    ) -> Result<u64, String> {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        if bytes.len() > MAX_CHUNK_BYTES {
            return Err(format!("{} tokens are more than a message has", tokens.len()));
        }
        let prefixes = match &choice.records {
            Some((names, has_rest)) => self.prefixes_at(names, choice.len, *has_rest).await?,
            None => vec![None; self.stages.len()],
        };
        let mut puts = Vec::new();
        for (i, prefix) in prefixes.into_iter().enumerate() {
            let is_last = i + 1 == self.stages.len();
            puts.push(PutBackRequest {
                slot: to.slot.0,
                unchanged_since: to.unchanged_since,
                name: name.0.to_vec().into(),
                len: choice.len,
                tokens: if is_last { bytes.clone().into() } else { Default::default() },
                sources: self.sources(i, &choice.sources[i])?,
                kept_len: if choice.kept[i] { choice.len } else { 0 },
                prefix,
                ..PutBackRequest::default()
            });
        }
        let fetched = self.put(puts, PUT_BACK_WITHIN).await?;
        tracing::debug!(
            slot = to.slot.0,
            len = choice.len,
            fetched,
            "a sequence goes on from a copy"
        );
        Ok(fetched)
    }

    /// Makes all stages put a state back, each by its request; bytes that went from one worker to another.
    ///
    /// # Errors
    /// Why a stage has not got it.
    pub(crate) async fn put(
        &self,
        requests: Vec<PutBackRequest>,
        within: Duration,
    ) -> Result<u64, String> {
        let mut puts = JoinSet::new();
        for (stage, request) in self.stages.iter().cloned().zip(requests) {
            let Identity { epoch, coordinator_id } = self.identity.clone();
            let request = PutBackRequest { epoch, coordinator_id, ..request };
            puts.spawn(async move {
                let call = async {
                    let put = stage.conn.copies().put_back(request).await;
                    put.map(|reply| reply.into_inner()).map_err(|status| stage.conn.error(&status))
                };
                let put = timeout(within, stage.conn.while_alive(call)).await;
                let worker = stage.conn.name().to_string();
                let late = || format!("not within {} s", within.as_secs());
                put.unwrap_or_else(|_| Err(WorkerError::Stalled { worker, reason: late() }))
            });
        }
        let mut fetched = 0;
        while let Some(put) = puts.join_next().await {
            let put = put.map_err(|error| format!("a task ended without a result: {error}"))?;
            fetched += put.map_err(|error| error.to_string())?.fetched_bytes;
        }
        Ok(fetched)
    }

    /// Where a stage finds its layers.
    pub(crate) fn sources(&self, stage: usize, from: &[From]) -> Result<Vec<CopySource>, String> {
        let source = |from: &From| {
            let layers = CopySource {
                layer_begin: from.layers.start,
                layer_end: from.layers.end,
                ..CopySource::default()
            };
            if from.worker == stage {
                return Some(layers);
            }
            let reach = self.workers().nth(from.worker)?.reach();
            let dials = self.workers().nth(stage)?;
            facts::can_dial(dials.capabilities(), reach.address()).then(|| CopySource {
                address: reach.address().to_string(),
                key: reach.key_bytes(),
                ..layers
            })
        };
        let sources: Option<Vec<CopySource>> = from.iter().map(source).collect();
        sources
            .ok_or_else(|| "a worker with copies has no address that the other can dial".to_owned())
    }
}

/// The copies that a worker reports; `None` for an invalid report.
fn has_of(worker: usize, found: Found) -> Option<Has> {
    let (marks, rest) = found.marks.as_chunks::<COPY_NAME_BYTES>();
    if marks.len() != found.positions.len() || !rest.is_empty() {
        return None;
    }
    let marks = marks.iter().map(|mark| TokenMark(*mark));
    let Found { layer_begin, layer_end, in_place, parting, up_to, .. } = found;
    let positions = found.positions.iter().copied().zip(marks).collect();
    Some(Has { worker, layers: layer_begin..layer_end, in_place, parting, up_to, positions })
}
