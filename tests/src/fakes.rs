//! Fake workers: hung, lying or outdated peers. They listen, and go along for a part of the way to a line.
//!
//! Tests use them to try what a hung, lying or outdated peer may do to a coordinator. Each takes a free port
//! on loopback, and runs until it is dropped.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use brigade_proto::address::Address;
use brigade_proto::control::cluster_client::ClusterClient;
use brigade_proto::control::worker_client::WorkerClient;
use brigade_proto::control::worker_server::{Worker, WorkerServer};
use brigade_proto::control::{
    Capabilities, DrainReply, DrainRequest, FetchEvent, FetchRequest, GatherRequest, HealthReply,
    HealthRequest, HelloReply, HelloRequest, JoinReply, JoinRequest, LoadEvent, LoadRequest,
    PrepareReply, PrepareRequest, PushReply, RestoreReply, RestoreRequest, RetireReply,
    RetireRequest, SnapshotRequest, StateChunk, TensorChunk, UnloadReply, UnloadRequest,
};
use brigade_proto::net::{Listener, dial, server};
use brigade_proto::{SOFTWARE, WIRE_VERSION};
use tokio::runtime::Runtime;
use tokio_stream::Empty;
use tonic::{Request, Response, Status, Streaming};

/// The first frame of an HTTP/2 server: empty settings.
const EMPTY_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// How far a fake goes.
#[derive(Clone, Debug)]
pub enum Phase {
    /// Takes connections and says nothing.
    Accepts,
    /// Says that it speaks HTTP/2, and nothing more.
    Settings,
    /// Serves workers' calls and never answers a handshake.
    NoHello,
    /// Shakes hands with this, answers heartbeats, and never accepts a stage.
    NoPrepare(Box<HelloReply>),
}

/// A fake worker. Dropping it ends it.
pub struct Fake {
    /// The address on which it listens.
    pub address: Address,
    over: Arc<AtomicBool>,
    _runtime: Option<Runtime>,
}

impl Fake {
    /// Starts a fake worker.
    ///
    /// # Panics
    /// If there is no free port.
    pub fn start(phase: Phase) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        match phase {
            Phase::Accepts => Self::raw(&[], over),
            Phase::Settings => Self::raw(&EMPTY_SETTINGS, over),
            Phase::NoHello => Self::calls(None, over),
            Phase::NoPrepare(hello) => Self::calls(Some(*hello), over),
        }
    }

    fn raw(greeting: &'static [u8], over: Arc<AtomicBool>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket: SocketAddr = listener.local_addr().unwrap();
        let ended = over.clone();
        std::thread::spawn(move || {
            let mut open: Vec<TcpStream> = Vec::new();
            for stream in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                // A peer that has gone already is no matter.
                let _ = stream.write_all(greeting);
                open.push(stream);
            }
        });
        Self { address: socket.into(), over, _runtime: None }
    }

    fn calls(hello: Option<HelloReply>, over: Arc<AtomicBool>) -> Self {
        let runtime = runtime();
        let address = runtime.block_on(async {
            let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), false).await.unwrap();
            let address = listener.address().clone();
            let router = server().add_service(WorkerServer::new(Calls { hello }));
            tokio::spawn(listener.serve(router, std::future::pending()));
            address
        });
        Self { address, over, _runtime: Some(runtime) }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Address::Tcp { host, port, .. } = &self.address {
            // Wakes the thread that accepts.
            let _ = TcpStream::connect((host.as_str(), *port));
        }
    }
}

/// A runtime for calls of a test.
pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Runs a test that is async to its end.
pub fn in_runtime(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(test);
}

/// The answer of a worker to a handshake.
///
/// # Panics
/// If it does not answer.
pub fn hello(worker: &Address) -> HelloReply {
    runtime().block_on(async {
        let channel = dial(worker, false).await.unwrap();
        let request = HelloRequest {
            wire_version: WIRE_VERSION,
            newest_wire_version: 0,
            software: SOFTWARE.to_string(),
            coordinator_id: "a test".to_string(),
        };
        WorkerClient::new(channel).hello(request).await.unwrap().into_inner()
    })
}

/// Tells a worker to drain; returns before it has.
///
/// # Panics
/// If it cannot be reached.
pub fn drain(worker: &Address) -> Runtime {
    let runtime = runtime();
    let channel = runtime.block_on(dial(worker, false)).unwrap();
    runtime.spawn(async move { WorkerClient::new(channel).drain(DrainRequest {}).await });
    runtime
}

/// Tells a coordinator that a worker is at `address`.
///
/// # Errors
/// Why it is refused.
pub fn join(control: &Address, address: &str) -> Result<JoinReply, Status> {
    runtime().block_on(async {
        let channel = dial(control, false).await.unwrap();
        let request = JoinRequest {
            wire_version: WIRE_VERSION,
            newest_wire_version: 0,
            software: SOFTWARE.to_string(),
            address: address.to_string(),
            capabilities: Some(Capabilities::default()),
        };
        Ok(ClusterClient::new(channel).join(request).await?.into_inner())
    })
}

struct Calls {
    hello: Option<HelloReply>,
}

fn refused<T>() -> Result<T, Status> {
    Err(Status::unimplemented("a fake"))
}

#[tonic::async_trait]
impl Worker for Calls {
    type LoadStream = Empty<Result<LoadEvent, Status>>;
    type FetchTensorsStream = Empty<Result<FetchEvent, Status>>;
    type GatherTensorsStream = Self::FetchTensorsStream;
    type LoadAheadStream = Self::LoadStream;
    type SnapshotStream = Empty<Result<StateChunk, Status>>;

    async fn hello(&self, _: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        match &self.hello {
            Some(reply) => Ok(Response::new(reply.clone())),
            None => std::future::pending().await,
        }
    }

    async fn prepare(&self, _: Request<PrepareRequest>) -> Result<Response<PrepareReply>, Status> {
        std::future::pending().await
    }

    async fn push_tensors(
        &self,
        _: Request<Streaming<TensorChunk>>,
    ) -> Result<Response<PushReply>, Status> {
        refused()
    }

    async fn fetch_tensors(
        &self,
        _: Request<FetchRequest>,
    ) -> Result<Response<Self::FetchTensorsStream>, Status> {
        refused()
    }

    async fn gather_tensors(
        &self,
        _: Request<GatherRequest>,
    ) -> Result<Response<Self::GatherTensorsStream>, Status> {
        refused()
    }

    async fn load(&self, _: Request<LoadRequest>) -> Result<Response<Self::LoadStream>, Status> {
        refused()
    }

    async fn prepare_ahead(
        &self,
        _: Request<PrepareRequest>,
    ) -> Result<Response<PrepareReply>, Status> {
        refused()
    }

    async fn load_ahead(
        &self,
        _: Request<LoadRequest>,
    ) -> Result<Response<Self::LoadAheadStream>, Status> {
        refused()
    }

    async fn forget_ahead(
        &self,
        _: Request<UnloadRequest>,
    ) -> Result<Response<UnloadReply>, Status> {
        refused()
    }

    async fn unload(&self, _: Request<UnloadRequest>) -> Result<Response<UnloadReply>, Status> {
        Ok(Response::new(UnloadReply {}))
    }

    async fn health(&self, _: Request<HealthRequest>) -> Result<Response<HealthReply>, Status> {
        // The same start of a process as greeted.
        let capabilities = self.hello.as_ref().and_then(|hello| hello.capabilities.as_ref());
        let instance = capabilities.map_or(0, |capabilities| capabilities.instance);
        Ok(Response::new(HealthReply { instance, ..HealthReply::default() }))
    }

    async fn snapshot(
        &self,
        _: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        refused()
    }

    async fn restore(
        &self,
        _: Request<Streaming<RestoreRequest>>,
    ) -> Result<Response<RestoreReply>, Status> {
        refused()
    }

    async fn retire(&self, _: Request<RetireRequest>) -> Result<Response<RetireReply>, Status> {
        refused()
    }

    async fn drain(&self, _: Request<DrainRequest>) -> Result<Response<DrainReply>, Status> {
        refused()
    }
}
