//! Snapshots on the wire: a sequence's state goes out of the worker in chunks, or comes in.

use brigade_proto::task;
use std::sync::Arc;

use brigade_proto::control::{RestoreHead, RestoreRequest, StateChunk, restore_request};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{CHUNK_BYTES, MAX_CHUNK_BYTES, MAX_PIECE_BYTES, STATE_STALL_MS};
use brigade_proto::net::Intake;
use brigade_proto::tls::Who;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::machine::memory::make_room;
use crate::state::{STALL, StateTurn, Worker, check_speaker};

/// Chunks made and not yet taken by the transport.
const CHUNK_QUEUE: usize = 4;

/// Chunks of a snapshot, as a stream that ends when its reader has all, has gone or reads no more;
/// with it ends the turn.
pub fn chunks(snapshot: Vec<u8>, turn: StateTurn) -> mpsc::Receiver<Result<StateChunk, Status>> {
    let (chunks, receiver) = mpsc::channel(CHUNK_QUEUE);
    let (total_bytes, mut rest) = (snapshot.len() as u64, Bytes::from(snapshot));
    task::spawn(async move {
        let _turn = turn;
        while !rest.is_empty() {
            let data = rest.split_to(rest.len().min(CHUNK_BYTES));
            let sent = timeout(STALL, chunks.send(Ok(StateChunk { total_bytes, data }))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
        // Until it is taken, all of it is still here.
        let _ = timeout(STALL, chunks.reserve_many(CHUNK_QUEUE)).await;
    });
    receiver
}

/// Takes a snapshot's chunks and restores the sequence that the first message names.
///
/// # Errors
/// BadMessage for chunks that differ from the announcement, or that no longer come; the errors of
/// [`Worker::begin_restore`] and [`Worker::restore`].
pub async fn receive(
    worker: &Arc<Worker>,
    mut parts: Streaming<RestoreRequest>,
    intake: Option<Intake>,
    who: &Who,
) -> Result<(), Failure> {
    let head = match next(&mut parts).await? {
        Some(restore_request::Part::Head(head)) => head,
        _ => return Err(bad("a restore starts with its head")),
    };
    check_speaker(who, &head.coordinator_id)?;
    let (total, _turn) = worker.begin_restore(&head).await?;
    intake.iter().for_each(|intake| intake.accept(MAX_PIECE_BYTES));
    let mut bytes = Vec::new();
    while let Some(part) = next(&mut parts).await? {
        let restore_request::Part::Data(data) = part else {
            return Err(bad("restore.head comes once"));
        };
        append(&mut bytes, &data, &head)?;
    }
    if bytes.len() != total {
        return Err(bad(format!("the restore ended after {} of {total} bytes", bytes.len())));
    }
    worker.restore(&head, bytes).await
}

fn append(bytes: &mut Vec<u8>, data: &[u8], head: &RestoreHead) -> Result<(), Failure> {
    if data.is_empty() || data.len() > MAX_CHUNK_BYTES {
        let n = data.len();
        return Err(bad(format!("restore.data has {n} bytes, 1 to {MAX_CHUNK_BYTES} are allowed")));
    }
    if (bytes.len() + data.len()) as u64 > head.total_bytes {
        return Err(bad(format!("more than the {} bytes announced", head.total_bytes)));
    }
    make_room(bytes, data.len(), head.total_bytes)?;
    bytes.extend_from_slice(data);
    Ok(())
}

async fn next(
    parts: &mut Streaming<RestoreRequest>,
) -> Result<Option<restore_request::Part>, Failure> {
    let message = timeout(STALL, parts.message()).await;
    let message = message.map_err(|_| bad(format!("nothing came for {STATE_STALL_MS} ms")))?;
    match message {
        Ok(None) => Ok(None),
        Ok(Some(RestoreRequest { part: Some(part) })) => Ok(Some(part)),
        Ok(Some(RestoreRequest { part: None })) => Err(bad("restore.part is missing")),
        Err(status) => Err(Failure::from_status(&status)),
    }
}

fn bad(why: impl Into<String>) -> Failure {
    Failure::refusal(FailureKind::BadMessage, why)
}
