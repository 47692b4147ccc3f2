//! The control service: it turns requests into calls of [`Worker`], and their results into replies. It has no
//! state of its own.

use brigade_proto::task;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use brigade_proto::capability::check_version;
use brigade_proto::control::worker_server;
use brigade_proto::control::{
    DrainReply, DrainRequest, FetchEvent, FetchRequest, FetchedSpan, GatherRequest, HealthReply,
    HealthRequest, HelloReply, HelloRequest, LoadEvent, LoadProgress, LoadRequest, LoadedFacts,
    PrepareReply, PrepareRequest, PushReply, RestoreReply, RestoreRequest, RetireReply,
    RetireRequest, SnapshotRequest, StateChunk, TensorChunk, UnloadReply, UnloadRequest,
    fetch_event, load_event,
};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::net::{Caller, Intake, NetError};
use brigade_proto::tls::revoked::MAX_REVOKED;
use brigade_proto::tls::{Revoked, Who};
use brigade_proto::{OLDEST_WIRE_VERSION, SOFTWARE, WIRE_VERSION};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::gather::Gather;
use super::push;
use super::transfer;
use crate::loading::fetch::{Fetch, Step};
use crate::loading::load::cache_failure;
use crate::loading::order::{Order, keys_from_wire};
use crate::machine::pace::Pace;
use crate::state::{Worker, blocking, check_speaker};
use crate::weights::cache::{Cache, Needed, Pinned, Purpose};

/// Load events not yet taken by the transport; progress that does not fit is skipped.
const LOAD_QUEUE: usize = 4;
/// Least time between two progress events.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// The stream of a load's progress and result.
type LoadEvents = ReceiverStream<Result<LoadEvent, Status>>;

/// The stream of a fetch's progress.
type FetchEvents = ReceiverStream<Result<FetchEvent, Status>>;

/// Where that is told.
type FetchSender = mpsc::Sender<Result<FetchEvent, Status>>;

/// The control service of a worker.
#[derive(Clone)]
pub struct ControlService {
    worker: Arc<Worker>,
    pace: Arc<Pace>,
}

impl ControlService {
    /// Serves `worker`, strangers at `pace`.
    pub fn new(worker: Arc<Worker>, pace: Arc<Pace>) -> Self {
        Self { worker, pace }
    }

    /// Lets the coordinator that holds the worker pass; other callers wait for a turn.
    ///
    /// # Errors
    /// Forbidden for an id that is not the caller's; Busy, late, where too many wait.
    async fn turn(&self, from: &Origin, coordinator_id: &str) -> Result<(), Failure> {
        check_speaker(&from.who(), coordinator_id)?;
        if self.worker.is_owner(coordinator_id) {
            from.known();
            return Ok(());
        }
        self.pace.turn(from.peer()).await
    }

    /// Believes these keys no longer, where this worker believes any.
    fn revoke(&self, keys: &[u8]) -> Result<(), Failure> {
        let Some(credentials) = self.worker.network().credentials() else { return Ok(()) };
        let keys = Revoked::from_bytes(keys).ok_or_else(|| {
            let why = format!(
                "health.revoked has {} bytes: whole keys, at most {MAX_REVOKED}",
                keys.len()
            );
            Failure::refusal(FailureKind::BadMessage, why)
        })?;
        credentials.revoked().add(&keys);
        Ok(())
    }

    /// An order that can be carried out from here.
    ///
    /// # Errors
    /// BadMessage, naming the field; Unsupported, naming a worker that may not be dialled.
    async fn order(&self, request: PrepareRequest) -> Result<Order, Failure> {
        let order = Order::parse(request)?;
        let copies = order.checkpoints.as_ref();
        let buddy = copies.and_then(|copies| Some((copies.buddy.as_ref()?, copies.buddy_key)));
        let next = order.next_hop.as_ref().map(|next| (next, order.next_key));
        for (what, reached) in [("next hop", next), ("buddy", buddy)] {
            let Some((address, key)) = reached else { continue };
            let refuse =
                |e: NetError| Failure::refusal(FailureKind::Unsupported, format!("{what}: {e}"));
            self.worker.network().check(address, key.is_some()).await.map_err(refuse)?;
        }
        Ok(order)
    }

    /// A request to unload something, when it is its turn.
    async fn may_unload(&self, request: Request<UnloadRequest>) -> Result<UnloadRequest, Status> {
        let (from, request) = (Origin::of(&request), request.into_inner());
        self.turn(&from, &request.coordinator_id).await?;
        Ok(request)
    }

    /// Loads the prepared stage, now or ahead of the next line, and streams its progress and result.
    ///
    /// # Errors
    /// Forbidden, Busy or StaleEpoch; errors of loading come in the stream.
    async fn loading(
        &self,
        request: Request<LoadRequest>,
        ahead: bool,
    ) -> Result<LoadEvents, Failure> {
        let (from, request) = (Origin::of(&request), request.into_inner());
        let LoadRequest { epoch, coordinator_id } = request;
        self.turn(&from, &coordinator_id).await?;
        // A load waits for the one before it, so the caller is checked before it may start such a task.
        self.worker.check(&coordinator_id, epoch)?;
        let (events, stream) = mpsc::channel(LOAD_QUEUE);
        let worker = self.worker.clone();
        task::spawn(async move {
            let progress =
                progress_to(events.clone(), worker.clone(), coordinator_id.clone(), epoch);
            let loaded = if ahead {
                worker.load_ahead(&coordinator_id, epoch, progress).await
            } else {
                worker.load(&coordinator_id, epoch, progress).await
            };
            // The coordinator may have left; the loaded stage stays until another order comes.
            let _ = events.send(loaded_event(loaded)).await;
        });
        Ok(ReceiverStream::new(stream))
    }

    /// Makes room in the cache for what is `needed`, pins it, and lets `run` bring it there in a task of its own, while it
    /// holds the permit. `events` hears why that failed. What came stays pinned until the order `of` it has its own pin.
    ///
    /// # Errors
    /// Busy where too many fetch; the cache's.
    async fn receive<F>(
        &self,
        of: Caused,
        needed: Vec<Needed>,
        events: FetchSender,
        run: impl FnOnce(Cache, OwnedSemaphorePermit) -> F,
    ) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let turn = self.worker.fetch_turn()?;
        let cache = self.worker.loader().cache.clone();
        let (here, model) = (cache.clone(), self.worker.model_name());
        let pin = move || here.pin(&model, &needed, Purpose::Fetch).map_err(cache_failure);
        let pinned = Arc::new(blocking(pin).await?);
        let work = run(cache.pinning(pinned.clone()), turn);
        let (worker, Caused { coordinator_id, epoch }) = (self.worker.clone(), of);
        let keep = move |came| worker.keep_fetched(&coordinator_id, epoch, came);
        task::spawn(answered(work, pinned, keep, events));
        Ok(())
    }

    /// Reports the end of a peer's stream. A refusal is delayed like other answers to strangers.
    async fn ended<T>(&self, from: &Origin, result: Result<T, Failure>) -> Result<T, Failure> {
        if result.is_err() {
            self.pace.turn(from.peer()).await?;
        }
        result
    }
}

/// The line for which a call fetches.
struct Caused {
    coordinator_id: String,
    epoch: u64,
}

/// The connection that a call came on; `None` for a call that came on none.
struct Origin(Option<Caller>);

impl Origin {
    fn of<T>(request: &Request<T>) -> Self {
        Self(request.extensions().get().cloned())
    }

    fn who(&self) -> Who {
        self.0.as_ref().map(Caller::who).unwrap_or_default()
    }

    fn known(&self) {
        self.0.iter().for_each(Caller::known);
    }

    fn peer(&self) -> Option<brigade_proto::net::Peer> {
        self.0.as_ref().map(Caller::peer)
    }
}

#[tonic::async_trait]
impl worker_server::Worker for ControlService {
    type LoadStream = LoadEvents;
    type FetchTensorsStream = FetchEvents;
    type GatherTensorsStream = FetchEvents;
    type LoadAheadStream = LoadEvents;
    type SnapshotStream = ReceiverStream<Result<StateChunk, Status>>;

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let (from, hello) = (Origin::of(&request), request.into_inner());
        self.turn(&from, &hello.coordinator_id).await?;
        check_version(hello.wire_version, hello.newest_wire_version, &hello.software)
            .map_err(|e| Failure::refusal(FailureKind::Version, e.to_string()))?;
        Ok(Response::new(HelloReply {
            wire_version: OLDEST_WIRE_VERSION,
            newest_wire_version: WIRE_VERSION,
            software: SOFTWARE.to_owned(),
            capabilities: Some(self.worker.capabilities()),
            last_epoch: self.worker.last_epoch(&hello.coordinator_id),
        }))
    }

    async fn prepare(
        &self,
        request: Request<PrepareRequest>,
    ) -> Result<Response<PrepareReply>, Status> {
        let (from, request) = (Origin::of(&request), request.into_inner());
        let (coordinator_id, epoch) = (request.coordinator_id.clone(), request.epoch);
        self.turn(&from, &coordinator_id).await?;
        // Checked before any work is done for a coordinator that cannot have the worker.
        self.worker.check_free_for(&coordinator_id)?;
        let order = self.order(request).await?;
        let reply = self.worker.prepare(&coordinator_id, epoch, order).await?;
        from.known();
        Ok(Response::new(reply))
    }

    async fn push_tensors(
        &self,
        request: Request<Streaming<TensorChunk>>,
    ) -> Result<Response<PushReply>, Status> {
        let (from, intake) = (Origin::of(&request), intake_of(&request));
        let chunks = request.into_inner();
        let pushed = push::receive(&self.worker, chunks, intake, &from.who()).await;
        Ok(Response::new(self.ended(&from, pushed).await?))
    }

    async fn fetch_tensors(
        &self,
        request: Request<FetchRequest>,
    ) -> Result<Response<Self::FetchTensorsStream>, Status> {
        let (from, request) = (Origin::of(&request), request.into_inner());
        let (coordinator_id, epoch) = (request.coordinator_id.clone(), request.epoch);
        self.turn(&from, &coordinator_id).await?;
        self.worker.check(&coordinator_id, epoch)?;
        let fetch = Fetch::parse(request)?;
        let (needed, of) =
            (fetch.needed(), Caused { coordinator_id: coordinator_id.clone(), epoch });
        let (events, stream) = mpsc::channel(LOAD_QUEUE);
        let step = told(events.clone(), self.worker.clone(), coordinator_id, epoch);
        let run = |cache: Cache, turn| {
            blocking(move || {
                let _turn = turn;
                fetch.run(&cache, &step)
            })
        };
        self.receive(of, needed, events, run).await?;
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn gather_tensors(
        &self,
        request: Request<GatherRequest>,
    ) -> Result<Response<Self::GatherTensorsStream>, Status> {
        let (from, request) = (Origin::of(&request), request.into_inner());
        let (coordinator_id, epoch) = (request.coordinator_id.clone(), request.epoch);
        self.turn(&from, &coordinator_id).await?;
        self.worker.check(&coordinator_id, epoch)?;
        let gather = Gather::parse(request)?;
        let (needed, of) =
            (gather.needed(), Caused { coordinator_id: coordinator_id.clone(), epoch });
        let (events, stream) = mpsc::channel(LOAD_QUEUE);
        let step = told(events.clone(), self.worker.clone(), coordinator_id, epoch);
        let network = self.worker.network().clone();
        let run = |cache: Cache, turn| async move {
            let _turn = turn;
            gather.run(&cache, &network, step).await
        };
        self.receive(of, needed, events, run).await?;
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn load(
        &self,
        request: Request<LoadRequest>,
    ) -> Result<Response<Self::LoadStream>, Status> {
        Ok(Response::new(self.loading(request, false).await?))
    }

    async fn prepare_ahead(
        &self,
        request: Request<PrepareRequest>,
    ) -> Result<Response<PrepareReply>, Status> {
        let (from, request) = (Origin::of(&request), request.into_inner());
        let (coordinator_id, epoch) = (request.coordinator_id.clone(), request.epoch);
        self.turn(&from, &coordinator_id).await?;
        self.worker.check(&coordinator_id, epoch)?;
        let order = self.order(request).await?;
        Ok(Response::new(self.worker.prepare_ahead(&coordinator_id, epoch, order).await?))
    }

    async fn load_ahead(
        &self,
        request: Request<LoadRequest>,
    ) -> Result<Response<Self::LoadAheadStream>, Status> {
        Ok(Response::new(self.loading(request, true).await?))
    }

    async fn forget_ahead(
        &self,
        request: Request<UnloadRequest>,
    ) -> Result<Response<UnloadReply>, Status> {
        let UnloadRequest { epoch, coordinator_id } = self.may_unload(request).await?;
        self.worker.forget_ahead(&coordinator_id, epoch).await?;
        Ok(Response::new(UnloadReply {}))
    }

    async fn unload(
        &self,
        request: Request<UnloadRequest>,
    ) -> Result<Response<UnloadReply>, Status> {
        let UnloadRequest { epoch, coordinator_id } = self.may_unload(request).await?;
        self.worker.unload(&coordinator_id, epoch).await?;
        Ok(Response::new(UnloadReply {}))
    }

    async fn health(
        &self,
        request: Request<HealthRequest>,
    ) -> Result<Response<HealthReply>, Status> {
        let (from, request) = (Origin::of(&request), request.into_inner());
        let HealthRequest { epoch, coordinator_id, revoked } = request;
        self.turn(&from, &coordinator_id).await?;
        self.revoke(&revoked)?;
        Ok(Response::new(self.worker.health(&coordinator_id, epoch)))
    }

    async fn snapshot(
        &self,
        request: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        self.turn(&Origin::of(&request), &request.get_ref().coordinator_id).await?;
        let (snapshot, turn) = self.worker.snapshot(request.get_ref()).await?;
        Ok(Response::new(ReceiverStream::new(transfer::chunks(snapshot, turn))))
    }

    async fn restore(
        &self,
        request: Request<Streaming<RestoreRequest>>,
    ) -> Result<Response<RestoreReply>, Status> {
        let (from, intake) = (Origin::of(&request), intake_of(&request));
        let parts = request.into_inner();
        let received = transfer::receive(&self.worker, parts, intake, &from.who()).await;
        self.ended(&from, received).await?;
        Ok(Response::new(RestoreReply {}))
    }

    async fn retire(
        &self,
        request: Request<RetireRequest>,
    ) -> Result<Response<RetireReply>, Status> {
        let (from, request) = (Origin::of(&request), request.into_inner());
        let RetireRequest { epoch, coordinator_id, line_keys } = request;
        self.turn(&from, &coordinator_id).await?;
        let line_keys = keys_from_wire("retire.line_keys", &line_keys)?;
        self.worker.retire(&coordinator_id, epoch, line_keys).await?;
        Ok(Response::new(RetireReply {}))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<DrainReply>, Status> {
        let from = Origin::of(&request);
        self.pace.turn(from.peer()).await?;
        self.worker.check_may_drain(&from.who())?;
        Ok(Response::new(DrainReply { epoch: self.worker.drain().await }))
    }
}

/// Sends the steps of a fetch to the peer. The returned function says whether the peer still listens.
fn told(
    to: FetchSender,
    worker: Arc<Worker>,
    coordinator_id: String,
    epoch: u64,
) -> impl Fn(Step) -> bool + Clone + Send + Sync + 'static {
    let last = Arc::new(Mutex::new(Instant::now()));
    move |step: Step| match step {
        Step::Done(span, hash) => {
            let fetched =
                FetchedSpan { span: span as u32, blake3: hash.as_bytes().to_vec().into() };
            let event = FetchEvent { event: Some(fetch_event::Event::Fetched(fetched)) };
            to.blocking_send(Ok(event)).is_ok()
        }
        Step::Bytes(done_bytes) => {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.elapsed() < PROGRESS_EVERY {
                return !to.is_closed();
            }
            *last = Instant::now();
            // While the coordinator listens its lease is renewed.
            worker.health(&coordinator_id, epoch);
            let progress = LoadProgress { done_bytes, total_bytes: 0 };
            let event = FetchEvent { event: Some(fetch_event::Event::Progress(progress)) };
            !matches!(to.try_send(Ok(event)), Err(mpsc::error::TrySendError::Closed(_)))
        }
    }
}

/// Waits for the end of a fetch, and reports why it failed. What came is given to `keep`. If the caller has gone, what was
/// pinned for the fetch is not any more at once, and the work ends with its next piece.
async fn answered(
    work: impl Future<Output = Result<(), Failure>>,
    pinned: Arc<Pinned>,
    keep: impl FnOnce(Arc<Pinned>),
    events: FetchSender,
) {
    tokio::pin!(work);
    let done = tokio::select! {
        done = &mut work => done,
        () = events.closed() => {
            pinned.release();
            // A peer that has left gets no answer.
            let _ = work.await;
            return;
        }
    };
    match done {
        Ok(()) => keep(pinned),
        Err(failure) => {
            pinned.release();
            let _ = events.send(Err(Status::from(failure))).await;
        }
    }
}

/// The meter of bytes that a stream may bring.
fn intake_of<T>(request: &Request<T>) -> Option<Intake> {
    request.extensions().get().cloned()
}

fn loaded_event(loaded: Result<LoadedFacts, Failure>) -> Result<LoadEvent, Status> {
    let facts = loaded.map_err(Status::from)?;
    Ok(LoadEvent { event: Some(load_event::Event::Loaded(facts)) })
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
