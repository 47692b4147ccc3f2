//! The control service: requests in, [`Worker`] calls, replies out. No state of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_proto::capability::check_version;
use brigade_proto::control::worker_server;
use brigade_proto::control::{
    DrainReply, DrainRequest, HealthReply, HealthRequest, HelloReply, HelloRequest, LoadEvent,
    LoadProgress, LoadRequest, PrepareReply, PrepareRequest, PushReply, RestoreReply,
    RestoreRequest, SnapshotRequest, StateChunk, TensorChunk, UnloadReply, UnloadRequest,
    load_event,
};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::{SOFTWARE, WIRE_VERSION};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::order::Order;
use crate::push;
use crate::state::Worker;
use crate::transfer;

/// Load events not yet taken by the transport; progress that does not fit is skipped.
const LOAD_QUEUE: usize = 4;
/// Least time between two progress events.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// The service.
#[derive(Clone)]
pub struct ControlService {
    worker: Arc<Worker>,
}

impl ControlService {
    /// Serves `worker`.
    pub fn new(worker: Arc<Worker>) -> Self {
        Self { worker }
    }
}

#[tonic::async_trait]
impl worker_server::Worker for ControlService {
    type LoadStream = ReceiverStream<Result<LoadEvent, Status>>;
    type SnapshotStream = ReceiverStream<Result<StateChunk, Status>>;

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let hello = request.into_inner();
        check_version(hello.wire_version, &hello.software)
            .map_err(|e| Failure::refusal(FailureKind::Version, e.to_string()))?;
        Ok(Response::new(HelloReply {
            wire_version: WIRE_VERSION,
            software: SOFTWARE.to_owned(),
            capabilities: Some(self.worker.capabilities()),
            last_epoch: self.worker.last_epoch(),
        }))
    }

    async fn prepare(
        &self,
        request: Request<PrepareRequest>,
    ) -> Result<Response<PrepareReply>, Status> {
        let request = request.into_inner();
        let (coordinator_id, epoch) = (request.coordinator_id.clone(), request.epoch);
        let order = Order::parse(request)?;
        if let Some(next) = &order.next_hop {
            let refuse = |e: brigade_proto::address::AddressError| {
                Failure::refusal(FailureKind::Unsupported, format!("next hop: {e}"))
            };
            next.resolve(self.worker.insecure_network()).await.map_err(refuse)?;
        }
        Ok(Response::new(self.worker.prepare(&coordinator_id, epoch, order).await?))
    }

    async fn push_tensors(
        &self,
        request: Request<Streaming<TensorChunk>>,
    ) -> Result<Response<PushReply>, Status> {
        Ok(Response::new(push::receive(&self.worker, request.into_inner()).await?))
    }

    async fn load(
        &self,
        request: Request<LoadRequest>,
    ) -> Result<Response<Self::LoadStream>, Status> {
        let LoadRequest { epoch, coordinator_id } = request.into_inner();
        let (events, stream) = mpsc::channel(LOAD_QUEUE);
        let worker = self.worker.clone();
        tokio::spawn(async move {
            let progress =
                progress_to(events.clone(), worker.clone(), coordinator_id.clone(), epoch);
            let loaded = worker.load(&coordinator_id, epoch, progress).await;
            let event = loaded
                .map(|facts| LoadEvent { event: Some(load_event::Event::Loaded(facts)) })
                .map_err(Status::from);
            // The coordinator may have left; the stage stays until it says otherwise.
            let _ = events.send(event).await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn unload(
        &self,
        request: Request<UnloadRequest>,
    ) -> Result<Response<UnloadReply>, Status> {
        let UnloadRequest { epoch, coordinator_id } = request.into_inner();
        self.worker.unload(&coordinator_id, epoch).await?;
        Ok(Response::new(UnloadReply {}))
    }

    async fn health(
        &self,
        request: Request<HealthRequest>,
    ) -> Result<Response<HealthReply>, Status> {
        let HealthRequest { epoch, coordinator_id } = request.into_inner();
        Ok(Response::new(self.worker.health(&coordinator_id, epoch)))
    }

    async fn snapshot(
        &self,
        request: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let snapshot = self.worker.snapshot(request.get_ref()).await?;
        Ok(Response::new(ReceiverStream::new(transfer::chunks(snapshot))))
    }

    async fn restore(
        &self,
        request: Request<Streaming<RestoreRequest>>,
    ) -> Result<Response<RestoreReply>, Status> {
        transfer::receive(&self.worker, request.into_inner()).await?;
        Ok(Response::new(RestoreReply {}))
    }

    async fn drain(&self, _request: Request<DrainRequest>) -> Result<Response<DrainReply>, Status> {
        Ok(Response::new(DrainReply { epoch: self.worker.drain().await }))
    }
}

/// Progress as events, not too many; while the coordinator listens to them its lease is renewed.
fn progress_to(
    events: mpsc::Sender<Result<LoadEvent, Status>>,
    worker: Arc<Worker>,
    coordinator_id: String,
    epoch: u64,
) -> impl Fn(u64, u64) + Send + 'static {
    let last = std::cell::Cell::new(Instant::now());
    move |done_bytes, total_bytes| {
        let now = Instant::now();
        if now.duration_since(last.get()) < PROGRESS_EVERY {
            return;
        }
        last.set(now);
        let progress = LoadProgress { done_bytes, total_bytes };
        let event = LoadEvent { event: Some(load_event::Event::Progress(progress)) };
        if !matches!(events.try_send(Ok(event)), Err(mpsc::error::TrySendError::Closed(_))) {
            worker.health(&coordinator_id, epoch);
        }
    }
}
