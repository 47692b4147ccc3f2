//! Tells all workers of a placement at the same time to load their stages, and adds up their progress.

use std::time::Duration;

use brigade_proto::control::{LoadRequest, LoadedFacts, WeightSource, load_event};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::building::place::Placement;
use crate::members::conn::{Conn, WorkerError};
use crate::progress::{Part, Phase, Progress};
use crate::reconcile::MemberId;
use brigade_line::model::Model;

/// How long a loading worker may be silent. One large tensor from a slow disk, or the memory of all its KV pages,
/// takes well under this.
const LOADS_SOMETHING_WITHIN: Duration = Duration::from_secs(120);

/// Loads all stages of a placement, and checks that each was built from this model's metadata; returns the bytes of
/// weights that were read for it.
///
/// # Errors
/// The member that failed, and why.
pub async fn load(
    placement: &Placement,
    model: &Model,
    progress: &Progress,
) -> Result<u64, (MemberId, WorkerError)> {
    let mut read_bytes = 0;
    let mut tasks = JoinSet::new();
    for stage in placement.stages.clone() {
        let part = progress.part(Phase::Loading, stage.weight_bytes);
        let epoch = placement.identity.epoch;
        let request =
            LoadRequest { epoch, coordinator_id: placement.identity.coordinator_id.clone() };
        tasks.spawn(async move {
            let loaded = load_stage(&stage.conn, request, false, part).await;
            (stage.member, loaded, stage.conn)
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
        read_bytes += facts.read_bytes;
    }
    Ok(read_bytes)
}

/// Where a stage's bytes came from, for people.
fn words(source: WeightSource) -> &'static str {
    match source {
        WeightSource::SharedFile => "the coordinator's file",
        WeightSource::LocalFile => "a file of its own",
        WeightSource::Cache => "its cache",
        WeightSource::Resident => "loaded already",
        WeightSource::Unspecified => "unknown",
    }
}

fn report(conn: &Conn, facts: &LoadedFacts) {
    let source = WeightSource::try_from(facts.source).unwrap_or_default();
    tracing::info!(
        worker = conn.name(),
        source = words(source),
        weight_bytes = facts.weight_bytes,
        state_bytes = facts.state_bytes,
        read_bytes = facts.read_bytes,
        kept_layers = facts.kept_layers,
        kernels = facts.kernels,
        threads = facts.threads,
        ms = (facts.seconds * 1e3) as u64,
        "stage loaded"
    );
}

/// Has a worker load the prepared stage. With `ahead`, the stage is that of the next line, while the line of
/// `request.epoch` runs.
///
/// # Errors
/// The worker's own error, or that the worker is lost or stalled.
pub async fn load_stage(
    conn: &Conn,
    request: LoadRequest,
    ahead: bool,
    part: Part,
) -> Result<LoadedFacts, WorkerError> {
    conn.while_alive(watched(conn, request, ahead, part)).await
}

async fn watched(
    conn: &Conn,
    request: LoadRequest,
    ahead: bool,
    part: Part,
) -> Result<LoadedFacts, WorkerError> {
    let mut control = conn.control();
    let called =
        if ahead { control.load_ahead(request).await } else { control.load(request).await };
    let failed = |s: tonic::Status| conn.error(&s);
    let mut stream = called.map_err(failed)?.into_inner();
    let stalled = |_| WorkerError::Stalled {
        worker: conn.name().to_string(),
        reason: format!("it loaded nothing for {} s", LOADS_SOMETHING_WITHIN.as_secs()),
    };
    loop {
        let event = timeout(LOADS_SOMETHING_WITHIN, stream.message()).await.map_err(stalled)?;
        let Some(event) = event.map_err(failed)? else { break };
        match event.event {
            Some(load_event::Event::Progress(p)) => {
                part.at(p.done_bytes);
            }
            Some(load_event::Event::Loaded(facts)) => return Ok(facts),
            None => {}
        }
    }
    let reason = "it ended loading without a result".to_string();
    Err(WorkerError::Lost { worker: conn.name().to_string(), reason })
}
