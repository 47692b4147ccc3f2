//! Sends a worker the bytes that it lacks: the model's header and the tensors of its stage, each of them
//! once.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use brigade_gguf::TensorInfo;
use brigade_proto::control::worker_client::WorkerClient;
use brigade_proto::control::{Blob, MissingBlob, TensorChunk, TensorRef};
use brigade_proto::limits::{CHUNK_BYTES, MAX_CONTROL_BYTES};
use brigade_proto::net::with_causes;
use brigade_proto::task::joined;
use brigade_worker::weights::cache::Cache;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::members::conn::{Conn, WorkerError};
use crate::progress::{Part, Phase, Progress};
use brigade_line::model::Model;

/// Chunks read ahead of the connection.
const CHUNK_QUEUE: usize = 8;

/// The stage to send, and its line.
pub struct Job {
    /// Epoch of the line.
    pub epoch: u64,
    /// The id of this coordinator.
    pub coordinator_id: String,
    /// Number of the stage, for the log.
    pub stage: u32,
    /// All tensors of the stage, hashed.
    pub tensors: Vec<TensorRef>,
    /// Bytes of the stage's weights, for the log.
    pub weight_bytes: u64,
    /// Where the bytes are of a model that has no files here.
    pub relayed: Option<Cache>,
}

/// Sends the missing blobs, each from the offset the worker has it up to.
///
/// # Errors
/// The worker refused a chunk or was lost; the next attempt goes on where this one stopped.
pub async fn push(
    model: &Arc<Model>,
    conn: &Conn,
    job: Job,
    missing: Vec<MissingBlob>,
    progress: &Progress,
) -> Result<(), WorkerError> {
    if missing.is_empty() {
        tracing::info!(
            worker = conn.name(),
            stage = job.stage,
            pushed_bytes = 0,
            "no bytes missing"
        );
        return Ok(());
    }
    let total: u64 = missing.iter().map(|m| nbytes(m).saturating_sub(m.offset)).sum();
    let (stage, weight_bytes) = (job.stage, job.weight_bytes);
    let (chunks, stream) = mpsc::channel(CHUNK_QUEUE);
    let part = progress.part(Phase::Sending, total);
    let reader = Reader { model: model.clone(), job, part };
    let reading = tokio::task::spawn_blocking(move || reader.read(&missing, &chunks));
    // A connection of its own: heartbeats and control calls do not wait behind weights.
    let lost = |reason: String| WorkerError::Lost { worker: conn.name().to_string(), reason };
    let channel = conn.reach().dial().await.map_err(|e| lost(with_causes(&e)))?;
    let mut client = WorkerClient::new(channel).max_encoding_message_size(MAX_CONTROL_BYTES);
    let call = async {
        client.push_tensors(ReceiverStream::new(stream)).await.map_err(|s| conn.error(&s))
    };
    let reply = conn.while_alive(call).await?.into_inner();
    joined(reading.await).await.map_err(lost)?;
    tracing::info!(
        worker = conn.name(),
        stage,
        pushed_bytes = reply.received_bytes,
        blobs = reply.completed_blobs,
        weight_bytes,
        "bytes pushed"
    );
    Ok(())
}

fn nbytes(missing: &MissingBlob) -> u64 {
    missing.blob.as_ref().map_or(0, |b| b.nbytes)
}

/// Reads blobs out of the model's files, chunk by chunk.
struct Reader {
    model: Arc<Model>,
    job: Job,
    part: Part,
}

impl Reader {
    fn read(self, missing: &[MissingBlob], out: &mpsc::Sender<TensorChunk>) -> Result<(), String> {
        let names: HashMap<Bytes, &str> = self
            .job
            .tensors
            .iter()
            .filter_map(|t| Some((t.blob.as_ref()?.blake3.clone(), t.name.as_str())))
            .collect();
        let mut sent = 0;
        for entry in missing {
            let Some(blob) = &entry.blob else { continue };
            let data = self.data(blob, &names)?;
            let mut offset = entry.offset;
            while offset < data.nbytes(&self.model) {
                let chunk = data.chunk(&self.model, offset)?;
                let len = chunk.len() as u64;
                let message = TensorChunk {
                    epoch: self.job.epoch,
                    coordinator_id: self.job.coordinator_id.clone(),
                    blob: Some(blob.clone()),
                    offset,
                    data: chunk,
                };
                if out.blocking_send(message).is_err() {
                    // The call has ended; its status says why.
                    return Ok(());
                }
                offset += len;
                sent += len;
                self.part.at(sent);
            }
        }
        Ok(())
    }

    /// The bytes that a blob's hash names.
    fn data(&self, blob: &Blob, names: &HashMap<Bytes, &str>) -> Result<Data<'_>, String> {
        if blob.blake3[..] == self.model.header_hash.as_bytes()[..] {
            return Ok(Data::Header);
        }
        let Some(name) = names.get(&blob.blake3) else {
            return Err("it asks for bytes that are not of its stage".to_string());
        };
        if let Some(cache) = &self.job.relayed {
            let hash = blake3::Hash::from_slice(&blob.blake3).map_err(|e| e.to_string())?;
            let found = cache.lookup(&hash, blob.nbytes).map_err(|e| e.to_string())?;
            let found = found.ok_or_else(|| format!("{name} was not fetched for it"))?;
            let file =
                File::open(&found.path).map_err(|e| format!("{}: {e}", found.path.display()))?;
            return Ok(Data::Relayed(file, blob.nbytes));
        }
        self.model.gguf.require(name).map(Data::Tensor).map_err(|e| e.to_string())
    }
}

/// Bytes of a model that a hash names.
enum Data<'a> {
    Header,
    Tensor(&'a TensorInfo),
    Relayed(File, u64),
}

impl Data<'_> {
    fn nbytes(&self, model: &Model) -> u64 {
        match self {
            Self::Header => model.header.len() as u64,
            Self::Tensor(tensor) => tensor.nbytes,
            Self::Relayed(_, nbytes) => *nbytes,
        }
    }

    /// The next bytes from `offset`, which is below the length.
    fn chunk(&self, model: &Model, offset: u64) -> Result<Bytes, String> {
        let len = (self.nbytes(model) - offset).min(CHUNK_BYTES as u64);
        match self {
            Self::Header => Ok(model.header.slice(offset as usize..(offset + len) as usize)),
            Self::Tensor(tensor) => {
                let mut chunk = vec![0; len as usize];
                let read = model.files().and_then(|files| files.read(tensor, offset, &mut chunk));
                read.map(|()| chunk.into()).map_err(|e| e.to_string())
            }
            Self::Relayed(file, _) => {
                let mut chunk = vec![0; len as usize];
                let read = file.read_exact_at(&mut chunk, offset);
                read.map(|()| chunk.into()).map_err(|e| e.to_string())
            }
        }
    }
}
