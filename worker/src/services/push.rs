//! Receives pushed blobs of weights. Chunks come off the wire in order, and a blocking thread writes them to the
//! disk.

use brigade_proto::task;
use std::sync::Arc;

use blake3::Hash;
use brigade_proto::control::{PushReply, TensorChunk};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{MAX_BLOB_BYTES, MAX_CHUNK_BYTES, MAX_PIECE_BYTES};
use brigade_proto::net::Intake;
use brigade_proto::tls::Who;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::loading::load::cache_failure;
use crate::loading::order::hash_from_wire;
use crate::state::{Worker, blocking, check_speaker};
use crate::weights::cache::{BlobWriter, Cache};

/// Chunks received and not yet written.
const WRITE_QUEUE: usize = 4;

/// Takes a stream of chunks until it ends; each blob is verified when complete. A blob cut off by
/// the stream's end stays as a part, to be resumed.
///
/// # Errors
/// The first bad chunk ends the stream: it is of another epoch, breaks a cap, leaves a gap, completes a corrupt blob,
/// or cannot be written.
pub async fn receive(
    worker: &Arc<Worker>,
    mut chunks: Streaming<TensorChunk>,
    intake: Option<Intake>,
    who: &Who,
) -> Result<PushReply, Failure> {
    let from = |status: Status| Failure::from_status(&status);
    let Some(mut chunk) = chunks.message().await.map_err(from)? else {
        return Ok(PushReply::default());
    };
    check_speaker(who, &chunk.coordinator_id)?;
    worker.check_push(&chunk)?;
    intake.iter().for_each(|intake| intake.accept(MAX_PIECE_BYTES));
    // A thread waits for the rest: only for a peer that may push.
    let (to_disk, queue) = mpsc::channel(WRITE_QUEUE);
    let cache = worker.loader().cache.clone();
    let writer = task::spawn(blocking(move || write_all(&cache, queue)));
    let outcome = loop {
        // A closed queue: the writer has failed, and says why below.
        if to_disk.send(chunk).await.is_err() {
            break Ok(());
        }
        chunk = match chunks.message().await {
            Ok(None) => break Ok(()),
            Ok(Some(chunk)) => chunk,
            Err(status) => break Err(Failure::from_status(&status)),
        };
        if let Err(failure) = worker.check_push(&chunk) {
            break Err(failure);
        }
    };
    drop(to_disk);
    let written = writer.await.unwrap_or_else(|error| {
        Err(Failure::refusal(FailureKind::Io, format!("writing to the cache failed: {error}")))
    })?;
    outcome.map(|()| written)
}

fn write_all(cache: &Cache, mut queue: mpsc::Receiver<TensorChunk>) -> Result<PushReply, Failure> {
    let mut reply = PushReply::default();
    let mut current: Option<(Hash, BlobWriter)> = None;
    while let Some(chunk) = queue.blocking_recv() {
        let (hash, nbytes) = checked_blob(&chunk)?;
        let mut writer = match current.take() {
            Some((open, writer)) if open == hash => writer,
            // A blob that is left incomplete stays as a part.
            _ => cache.receive(hash, nbytes).map_err(cache_failure)?,
        };
        writer.write(chunk.offset, &chunk.data).map_err(cache_failure)?;
        reply.received_bytes += chunk.data.len() as u64;
        if writer.is_complete(chunk.offset + chunk.data.len() as u64) {
            writer.finish().map_err(cache_failure)?;
            reply.completed_blobs += 1;
        } else {
            current = Some((hash, writer));
        }
    }
    Ok(reply)
}

fn checked_blob(chunk: &TensorChunk) -> Result<(Hash, u64), Failure> {
    let bad = |why: String| Failure::refusal(FailureKind::BadMessage, why);
    let blob = chunk.blob.as_ref().ok_or_else(|| bad("chunk.blob is missing".into()))?;
    let hash = hash_from_wire("chunk.blob", &blob.blake3)?;
    if blob.nbytes == 0 || blob.nbytes > MAX_BLOB_BYTES {
        return Err(bad(format!("chunk.blob has {} bytes, 1 to {MAX_BLOB_BYTES}", blob.nbytes)));
    }
    let len = chunk.data.len();
    if len == 0 || len > MAX_CHUNK_BYTES {
        return Err(bad(format!("chunk.data has {len} bytes, 1 to {MAX_CHUNK_BYTES} are allowed")));
    }
    if chunk.offset > blob.nbytes {
        return Err(bad(format!("chunk.offset is {} of {} bytes", chunk.offset, blob.nbytes)));
    }
    Ok((hash, blob.nbytes))
}
