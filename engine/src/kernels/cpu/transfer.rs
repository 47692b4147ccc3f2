//! Snapshots on the wire: a sequence's state in chunks, out of the worker and into it.

use std::sync::Arc;

use brigade_proto::control::{RestoreHead, RestoreRequest, StateChunk, restore_request};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{CHUNK_BYTES, MAX_CHUNK_BYTES};
use bytes::Bytes;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::state::Worker;

/// Chunks made and not yet taken by the transport.
const CHUNK_QUEUE: usize = 4;

/// Chunks of a snapshot, as a stream that ends when its reader has all or has gone.
pub fn chunks(snapshot: Vec<u8>) -> mpsc::Receiver<Result<StateChunk, Status>> {
    let (chunks, receiver) = mpsc::channel(CHUNK_QUEUE);
    let (total_bytes, mut rest) = (snapshot.len() as u64, Bytes::from(snapshot));
    tokio::spawn(async move {
        while !rest.is_empty() {
            let data = rest.split_to(rest.len().min(CHUNK_BYTES));
            if chunks.send(Ok(StateChunk { total_bytes, data })).await.is_err() {
                return;
            }
        }
    });
    receiver
}

/// Takes a snapshot's chunks and restores the sequence that the first message names.
///
/// # Errors
/// BadMessage for chunks that are not what was announced; what [`Worker::restore`] says.
pub async fn receive(
    worker: &Arc<Worker>,
    mut parts: Streaming<RestoreRequest>,
) -> Result<(), Failure> {
    let head = match next(&mut parts).await? {
        Some(restore_request::Part::Head(head)) => head,
        _ => return Err(bad("a restore starts with its head")),
    };
    let total = worker.check_restore(&head)?;
    let mut bytes = Vec::new();
    let out_of_memory = |_| {
        let why = format!("no memory for a snapshot of {total} bytes");
        Failure::refusal(FailureKind::NoMemory, why)
    };
    bytes.try_reserve_exact(total).map_err(out_of_memory)?;
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
    bytes.extend_from_slice(data);
    Ok(())
}

async fn next(
    parts: &mut Streaming<RestoreRequest>,
) -> Result<Option<restore_request::Part>, Failure> {
    match parts.message().await {
        Ok(None) => Ok(None),
        Ok(Some(RestoreRequest { part: Some(part) })) => Ok(Some(part)),
        Ok(Some(RestoreRequest { part: None })) => Err(bad("restore.part is missing")),
        Err(status) => Err(Failure::from_status(&status)),
    }
}

fn bad(why: impl Into<String>) -> Failure {
    Failure::refusal(FailureKind::BadMessage, why)
}
