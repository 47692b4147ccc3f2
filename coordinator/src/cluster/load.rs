//! Tells the workers of a placement to load their stages, all at the same time, and adds up their progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use brigade_proto::control::{LoadRequest, LoadedFacts, WeightSource, load_event};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::conn::{Conn, WorkerError};
use super::link::LineEvent;
use super::place::Placement;
use super::placed::Identity;
use super::reconcile::MemberId;
use crate::handle::Status;
use crate::model::Model;

/// How long a worker that loads may say nothing: one large tensor from a slow disk, or the memory of all
/// its KV pages, takes well under this.
const LOADS_SOMETHING_WITHIN: Duration = Duration::from_secs(120);

/// Loads all stages of a placement, and checks that each was built from this model's metadata.
///
/// # Errors
/// The member that failed, and why.
pub async fn load(
    placement: &Placement,
    model: &Model,
    events: &mpsc::Sender<LineEvent>,
) -> Result<(), (MemberId, WorkerError)> {
    let done = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for stage in placement.stages.clone() {
        let watch = Loading {
            done: done.clone(),
            total: placement.weight_bytes,
            events: events.clone(),
            identity: placement.identity.clone(),
        };
        tasks.spawn(async move {
            let loading = watch.load(&stage.conn);
            (stage.member, stage.conn.while_alive(loading).await, stage.conn)
        });
    }
    while let Some(task) = tasks.join_next().await {
        // Tasks end early only when all of them are dropped with the set.
        let Ok((member, result, conn)) = task else { continue };
        let facts = result.map_err(|error| (member, error))?;
        if facts.metadata_hash[..] != model.header_hash.as_bytes()[..] {
            let reason = "its stage was built from another model's metadata".to_string();
            let worker = conn.name().to_string();
            return Err((member, WorkerError::Refused { worker, reason }));
        }
        report(&conn, &facts);
    }
    Ok(())
}

fn report(conn: &Conn, facts: &LoadedFacts) {
    let source = WeightSource::try_from(facts.source).unwrap_or_default();
    tracing::info!(
        worker = conn.name(),
        source = source.as_str_name(),
        weight_bytes = facts.weight_bytes,
        state_bytes = facts.state_bytes,
        kernels = facts.kernels,
        threads = facts.threads,
        seconds = facts.seconds,
        "stage loaded"
    );
}

/// One stage's loading, with the progress of all.
struct Loading {
    done: Arc<AtomicU64>,
    total: u64,
    events: mpsc::Sender<LineEvent>,
    identity: Identity,
}

impl Loading {
    async fn load(self, conn: &Conn) -> Result<LoadedFacts, WorkerError> {
        let request = LoadRequest {
            epoch: self.identity.epoch,
            coordinator_id: self.identity.coordinator_id.clone(),
        };
        let failed = |s: tonic::Status| conn.error(&s);
        let mut stream = conn.control().load(request).await.map_err(failed)?.into_inner();
        let mut before = 0;
        let stalled = |_| WorkerError::Stalled {
            worker: conn.name().to_string(),
            reason: format!("it loaded nothing for {} s", LOADS_SOMETHING_WITHIN.as_secs()),
        };
        loop {
            let event = timeout(LOADS_SOMETHING_WITHIN, stream.message()).await.map_err(stalled)?;
            let Some(event) = event.map_err(failed)? else { break };
            match event.event {
                Some(load_event::Event::Progress(p)) => {
                    let more = p.done_bytes.saturating_sub(before);
                    before = p.done_bytes;
                    self.progress(self.done.fetch_add(more, Ordering::Relaxed) + more);
                }
                Some(load_event::Event::Loaded(facts)) => return Ok(facts),
                None => {}
            }
        }
        let reason = "it ended loading without a result".to_string();
        Err(WorkerError::Lost { worker: conn.name().to_string(), reason })
    }

    fn progress(&self, done_bytes: u64) {
        let what = "loading weights".to_string();
        let total_bytes = self.total.max(done_bytes);
        let status = Status::Loading { what, done_bytes, total_bytes };
        // A full queue means that newer progress is on its way already.
        let _ = self.events.try_send(LineEvent::Progress(status));
    }
}
