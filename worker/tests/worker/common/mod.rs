//! Workers in this process, over real gRPC on loopback, and a coordinator that makes only single calls. Each
//! worker has a runtime of its own, so that it can be made to vanish.

#![allow(clippy::unwrap_used, reason = "test helpers fail as tests do")]

pub mod fake;
pub mod model;
pub mod real;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::control::worker_client::WorkerClient;
use brigade_proto::control::*;
use brigade_proto::failure::Failure;
use brigade_proto::net::{Connection, dial};
use brigade_proto::pipeline::pipeline_client::PipelineClient;
use brigade_proto::pipeline::{self as pb, LaneEvent, LaneFrame, ResultFrame, lane_frame};
use brigade_worker::backend::StageBackend;
use brigade_worker::config::{Config, RawConfig};
use brigade_worker::run::{Bound, WorkerError};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use fake::FakeBackend;
use model::Model;

/// A guard against hangs, not a measurement.
pub async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("a step hangs")
}

/// A folder of its own for each test.
pub fn scratch() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("brigade-worker-{}-{n}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn config(cache_dir: &Path, change: impl FnOnce(&mut RawConfig)) -> Config {
    let mut raw = RawConfig {
        listen: "127.0.0.1:0".into(),
        memory: Some("1G".into()),
        cache_dir: Some(cache_dir.to_owned()),
        ..RawConfig::default()
    };
    change(&mut raw);
    Config::validate(raw, &|_| None).unwrap()
}

/// A worker that can be stopped or made to vanish.
pub struct TestWorker {
    pub address: Address,
    pub backend: Arc<FakeBackend>,
    runtime: Option<tokio::runtime::Runtime>,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<oneshot::Receiver<Result<(), WorkerError>>>,
}

impl TestWorker {
    pub fn start(cache_dir: &Path) -> Self {
        Self::with(cache_dir, |_| ())
    }

    pub fn with(cache_dir: &Path, change: impl FnOnce(&mut RawConfig)) -> Self {
        Self::fake(cache_dir, FakeBackend::new(), change)
    }

    pub fn fake(
        cache_dir: &Path,
        backend: Arc<FakeBackend>,
        change: impl FnOnce(&mut RawConfig),
    ) -> Self {
        Self::serve(config(cache_dir, change), backend.clone(), backend)
    }

    /// A worker with the real engine.
    pub fn real(cache_dir: &Path, change: impl FnOnce(&mut RawConfig)) -> Self {
        let config = config(cache_dir, change);
        let engine = brigade_worker::stage::cpu_backend(&config).unwrap();
        Self::serve(config, engine, FakeBackend::new())
    }

    fn serve(config: Config, engine: Arc<dyn StageBackend>, backend: Arc<FakeBackend>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (stop, stopped) = oneshot::channel();
        let (told, address) = std::sync::mpsc::channel();
        let (over, ended) = oneshot::channel();
        runtime.spawn(async move {
            let bound = Bound::new(config, engine).await.unwrap();
            told.send(bound.address().clone()).unwrap();
            // The receiver is dropped unless a test waits for the end.
            let _ = over.send(bound.serve(async { drop(stopped.await) }).await);
        });
        let address = address.recv().unwrap();
        Self { address, backend, runtime: Some(runtime), stop: Some(stop), ended: Some(ended) }
    }

    /// How it ended by itself.
    pub async fn ended(&mut self) -> Result<(), WorkerError> {
        self.ended.take().unwrap().await.unwrap()
    }

    /// Asks it to leave.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Closes its sockets without a word, as a killed process does.
    pub fn vanish(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for TestWorker {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A coordinator's view of one worker.
pub struct Client {
    pub id: String,
    pub epoch: u64,
    pub control: WorkerClient<Connection>,
    pub pipeline: PipelineClient<Connection>,
}

/// A stage spec for layers of a line; `next` is the next worker.
pub fn spec(
    stage: u32,
    n_stages: u32,
    layers: std::ops::Range<u32>,
    next: Option<&Address>,
) -> StageSpec {
    StageSpec {
        stage,
        n_stages,
        layer_begin: layers.start,
        layer_end: layers.end,
        max_seqs: 4,
        n_blocks: 16,
        max_ctx: 512,
        max_rows: 64,
        kv_type: KvType::F32.into(),
        wire_type: WireType::F32.into(),
        next_hop: next.map_or_else(String::new, Address::to_string),
        ..StageSpec::default()
    }
}

impl Client {
    pub async fn connect(worker: &TestWorker, id: &str, epoch: u64) -> Self {
        Self::at(&worker.address, id, epoch).await
    }

    pub async fn at(address: &Address, id: &str, epoch: u64) -> Self {
        let control = WorkerClient::new(dial(address, false).await.unwrap());
        let pipeline = PipelineClient::new(dial(address, false).await.unwrap())
            .max_decoding_message_size(brigade_proto::limits::MAX_FRAME_BYTES);
        Self { id: id.into(), epoch, control, pipeline }
    }

    pub async fn hello(&mut self) -> HelloReply {
        let request = HelloRequest {
            wire_version: brigade_proto::WIRE_VERSION,
            newest_wire_version: 0,
            software: brigade_proto::SOFTWARE.into(),
            coordinator_id: self.id.clone(),
        };
        soon(self.control.hello(request)).await.unwrap().into_inner()
    }

    /// An order for a fake model.
    pub fn order(&self, model: &Model, spec: StageSpec, hashed: bool) -> PrepareRequest {
        let tensors = model.manifest(spec.layer_begin..spec.layer_end, hashed);
        PrepareRequest { tensors, ..self.order_of(model, spec) }
    }

    /// An order without its tensors.
    pub fn order_of(&self, model: &Model, spec: StageSpec) -> PrepareRequest {
        PrepareRequest {
            epoch: self.epoch,
            coordinator_id: self.id.clone(),
            model_name: "fake".into(),
            header: Some(model.header_blob()),
            tensors: Vec::new(),
            files: model.hints(&brigade_worker::host::host_id()),
            spec: Some(spec),
        }
    }

    pub async fn prepare(&mut self, request: PrepareRequest) -> Result<PrepareReply, Failure> {
        let reply = soon(self.control.prepare(request)).await;
        reply.map(tonic::Response::into_inner).map_err(|s| Failure::from_status(&s))
    }

    pub async fn push(&mut self, chunks: Vec<TensorChunk>) -> Result<PushReply, Failure> {
        let reply = soon(self.control.push_tensors(tokio_stream::iter(chunks))).await;
        reply.map(tonic::Response::into_inner).map_err(|s| Failure::from_status(&s))
    }

    /// Chunks of `step` bytes with the missing blobs.
    pub fn chunks(&self, model: &Model, missing: &[MissingBlob], step: usize) -> Vec<TensorChunk> {
        let mut chunks = Vec::new();
        for MissingBlob { blob, offset } in missing {
            let bytes = model.blob_bytes(blob.as_ref().unwrap());
            let mut at = *offset as usize;
            while at < bytes.len() {
                let end = (at + step).min(bytes.len());
                let data = bytes[at..end].to_vec().into();
                chunks.push(self.chunk(blob.clone().unwrap(), at as u64, data));
                at = end;
            }
        }
        chunks
    }

    pub fn chunk(&self, blob: Blob, offset: u64, data: bytes::Bytes) -> TensorChunk {
        let coordinator_id = self.id.clone();
        TensorChunk { epoch: self.epoch, coordinator_id, blob: Some(blob), offset, data }
    }

    pub async fn prepare_ahead(
        &mut self,
        request: PrepareRequest,
    ) -> Result<PrepareReply, Failure> {
        let reply = soon(self.control.prepare_ahead(request)).await;
        reply.map(tonic::Response::into_inner).map_err(|s| Failure::from_status(&s))
    }

    pub async fn load(&mut self) -> Result<LoadedFacts, Failure> {
        let request = LoadRequest { epoch: self.epoch, coordinator_id: self.id.clone() };
        Self::loaded(soon(self.control.load(request)).await).await
    }

    pub async fn load_ahead(&mut self) -> Result<LoadedFacts, Failure> {
        let request = LoadRequest { epoch: self.epoch, coordinator_id: self.id.clone() };
        Self::loaded(soon(self.control.load_ahead(request)).await).await
    }

    async fn loaded(
        called: Result<tonic::Response<Streaming<LoadEvent>>, Status>,
    ) -> Result<LoadedFacts, Failure> {
        let from = |s: Status| Failure::from_status(&s);
        let mut events = called.map_err(from)?.into_inner();
        loop {
            match soon(events.message()).await.map_err(from)?.unwrap().event.unwrap() {
                load_event::Event::Progress(_) => {}
                load_event::Event::Loaded(facts) => return Ok(facts),
            }
        }
    }

    pub async fn health(&mut self) -> HealthReply {
        let request = HealthRequest {
            epoch: self.epoch,
            coordinator_id: self.id.clone(),
            ..HealthRequest::default()
        };
        soon(self.control.health(request)).await.unwrap().into_inner()
    }

    pub async fn forget_ahead(&mut self) -> Result<(), Failure> {
        let request = UnloadRequest { epoch: self.epoch, coordinator_id: self.id.clone() };
        let reply = soon(self.control.forget_ahead(request)).await;
        reply.map(|_| ()).map_err(|s| Failure::from_status(&s))
    }

    pub async fn unload(&mut self) -> Result<(), Failure> {
        let request = UnloadRequest { epoch: self.epoch, coordinator_id: self.id.clone() };
        let reply = soon(self.control.unload(request)).await;
        reply.map(|_| ()).map_err(|s| Failure::from_status(&s))
    }

    pub async fn results(&mut self) -> Result<Streaming<ResultFrame>, Failure> {
        let coordinator_id = self.id.clone();
        let request = pb::ResultsRequest { epoch: self.epoch, coordinator_id, lane: 0 };
        let reply = soon(self.pipeline.results(request)).await;
        reply.map(tonic::Response::into_inner).map_err(|s| Failure::from_status(&s))
    }

    pub async fn open_lane(&mut self, stage: u32) -> Result<Lane, Failure> {
        let (frames, stream) = mpsc::channel(8);
        let coordinator_id = self.id.clone();
        let open = pb::LaneOpen { epoch: self.epoch, coordinator_id, lane: 0, stage };
        frames.send(LaneFrame { body: Some(lane_frame::Body::Open(open)) }).await.unwrap();
        let from = |s: Status| Failure::from_status(&s);
        let reply = soon(self.pipeline.lane(ReceiverStream::new(stream))).await.map_err(from)?;
        let mut events = reply.into_inner();
        let opened = soon(events.message()).await.map_err(from)?.expect("opened");
        Ok(Lane { epoch: self.epoch, frames, events, opened })
    }
}

/// An open lane, as the coordinator sees it.
pub struct Lane {
    pub epoch: u64,
    pub frames: mpsc::Sender<LaneFrame>,
    pub events: Streaming<LaneEvent>,
    pub opened: LaneEvent,
}

impl Lane {
    pub async fn send(&self, ubatch: pb::Ubatch) {
        let ubatch = pb::Ubatch { epoch: self.epoch, ..ubatch };
        self.send_raw(ubatch).await;
    }

    pub async fn send_raw(&self, ubatch: pb::Ubatch) {
        let frame = LaneFrame { body: Some(lane_frame::Body::Ubatch(ubatch)) };
        soon(self.frames.send(frame)).await.unwrap();
    }

    /// Why the lane ended.
    pub async fn failure(&mut self) -> Failure {
        let status = soon(self.events.message()).await.expect_err("the lane fails");
        Failure::from_status(&status)
    }
}

pub fn open(slot: u32) -> pb::SeqOp {
    let (blocks, request) = (vec![slot], format!("req-{slot}"));
    let open = pb::OpenOp { slot, blocks, sampler: None, request };
    pb::SeqOp { op: Some(pb::seq_op::Op::Open(open)) }
}

pub fn close(slot: u32) -> pb::SeqOp {
    pb::SeqOp { op: Some(pb::seq_op::Op::Close(pb::CloseOp { slot })) }
}

pub fn part(slot: u32, pos: u32, tokens: &[u32], want: pb::Want) -> pb::SeqPart {
    pb::SeqPart { slot, pos, tokens: tokens.to_vec(), want: want.into(), mu: None, ahead: None }
}

pub fn ubatch(id: u64, ops: Vec<pb::SeqOp>, parts: Vec<pb::SeqPart>) -> pb::Ubatch {
    pb::Ubatch { id, ops, parts, ..pb::Ubatch::default() }
}

/// Hidden rows as stage 0 would have sent them.
pub fn boundary(n_rows: u32, values: &[f32]) -> pb::Boundary {
    let data = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into();
    let width = fake::WIDTH as u32;
    pb::Boundary { dtype: WireType::F32.into(), n_rows, width, data }
}

/// The next frame of a lane that runs.
pub async fn next(results: &mut Streaming<ResultFrame>) -> ResultFrame {
    let frame = any_frame(results).await;
    assert_eq!(frame.failure, None);
    frame
}

/// The reason in the last frame of a lane that failed.
pub async fn reason(results: &mut Streaming<ResultFrame>) -> Failure {
    let frame = any_frame(results).await;
    assert!(frame.last);
    frame.failure.expect("a failure")
}

async fn any_frame(results: &mut Streaming<ResultFrame>) -> ResultFrame {
    soon(results.message()).await.expect("no error").expect("a frame")
}

/// A loaded line over `workers`, layers cut as evenly as can be.
pub async fn line(
    workers: &[&TestWorker],
    model: &Model,
    n_layers: u32,
    epoch: u64,
) -> Vec<Client> {
    let n = workers.len() as u32;
    let cut = |stage: u32| n_layers * stage / n;
    let mut clients = Vec::new();
    for (stage, worker) in workers.iter().enumerate() {
        let stage = stage as u32;
        let next = workers.get(stage as usize + 1).map(|w| &w.address);
        let mut client = Client::connect(worker, "c", epoch).await;
        let spec = spec(stage, n, cut(stage)..cut(stage + 1), next);
        client.prepare(client.order(model, spec, false)).await.unwrap();
        client.load().await.unwrap();
        clients.push(client);
    }
    clients
}
