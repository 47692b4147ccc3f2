//! A worker from its settings to its end: it binds, serves, joins and leaves.

mod parent;

use std::future::Future;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use brigade_engine::kernels::KernelError;
use brigade_proto::address::Address;
use brigade_proto::control::worker_server::WorkerServer;
use brigade_proto::copies::copies_server::CopiesServer;
use brigade_proto::limits::{MAX_CONTROL_BYTES, MAX_FRAME_BYTES, MAX_PIECE_BYTES};
use brigade_proto::net::{Listener, NetError, Network, Plain, address_towards, server};
use brigade_proto::pipeline::pipeline_server::PipelineServer;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::parent::FromNode;
use crate::backend::measure::{Beside, Measured};
use crate::backend::{Abilities, HostAbility, StageBackend};
use crate::config::{Config, DEFAULT_PORT};
use crate::executor::Stuck;
use crate::host;
use crate::identity::credentials::Secure;
use crate::identity::membership::MembershipError;
use crate::loading::load::Loader;
use crate::machine::ledger::{Amount, Ledger, LedgerError};
use crate::machine::memory;
use crate::machine::pace::Pace;
use crate::machine::reading_threads::{Pool, PoolError};
use crate::prefixes::store::{Rooms, Store};
use crate::records::folder::{Folder, Home, settle_old};
use crate::records::rate::Rate;
use crate::services::control::ControlService;
use crate::services::copies::CopiesService;
use crate::services::join::keep_joining;
use crate::services::lane::PipelineService;
use crate::stage::cpu_backend;
use crate::state::{Prefixes, Worker};
use crate::weights::cache::Cache;
use crate::weights::hashes::HashStore;

/// Start of the line by which a worker says on standard output where it listens.
pub const READY_PREFIX: &str = "brigade worker ready on ";

/// Start of the line by which a stage tells its node what it has measured, on standard output before the ready line.
pub const MEASURED_PREFIX: &str = "brigade worker measured ";

/// Ports that are tried where `--listen` says none: as many workers of one machine find one.
const MAX_PORTS: u16 = 64;

/// Threads that receive and send. One: a hop's tasks then wake each other without crossing cores (21 us a hop
/// instead of 28, `cargo bench -p brigade-worker`). Frames are copied in pieces, between which heartbeats are
/// answered. Nothing that blocks runs on it.
const NETWORK_THREADS: usize = 1;
/// Time that open calls get to end by themselves when the worker leaves.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// Why a worker could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The worker could not become a member of the cluster.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The worker cannot listen or serve.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The system refuses the threads that read weights.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The stage hangs and cannot be ended: this process must be restarted from outside.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// The op table named does not run here, or the system refuses threads.
    #[error(transparent)]
    Engine(#[from] KernelError),
    /// No threads for the network could be started.
    #[error("cannot start network threads: {0}")]
    Runtime(io::Error),
    /// A part of the worker ended without a result.
    #[error("the worker ended unexpectedly: {0}")]
    Lost(String),
    /// The folder of records cannot be used.
    #[error("--prefix-disk: {}: {source}; give the worker another --cache-dir", .dir.display())]
    Prefixes {
        /// The folder of records.
        dir: std::path::PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The memory limit cannot be found out.
    #[error("cannot tell how much memory is free on this system: give --memory")]
    MemoryUnknown,
    /// The node's memory cannot be shared.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The ready line cannot be written.
    #[error("cannot write the ready line to standard output: {0}")]
    Ready(io::Error),
}

/// The records that the settings ask for.
async fn open_prefixes(
    config: &Config,
    ledger: &Ledger,
    home: Arc<Home>,
) -> Result<Option<Prefixes>, WorkerError> {
    let (limits, rooms) = (config.prefixes, Rooms::of(ledger, config.prefixes));
    let (cache, dir) = (config.cache_dir.clone(), home.dir().to_owned());
    let opened = tokio::task::spawn_blocking(move || {
        settle_old(&cache);
        if limits.any() {
            return Store::open(home, limits, rooms).map(Some);
        }
        // Old folders are deleted after a time.
        Folder::expire(home.dir());
        Ok(None)
    });
    let opened = opened.await.map_err(|error| WorkerError::Lost(error.to_string()))?;
    let store = opened.map_err(|source| WorkerError::Prefixes { dir, source })?;
    Ok(store.map(Prefixes::new))
}

/// The memory that stages may take: that of the node, where the worker is one of its stages.
fn ledger(config: &Config, backend: &dyn StageBackend) -> Result<Ledger, WorkerError> {
    let of_place =
        if backend.has_own_memory() { config.gpu_memory_bytes } else { config.host_memory_bytes };
    let left = |free: u64| free.saturating_sub(memory::RESERVE_BYTES);
    let measured = || backend.free_bytes().map(left);
    let limit = config.memory_bytes.or(of_place).or_else(measured);
    let limit = limit.ok_or(WorkerError::MemoryUnknown)?;
    let stages = config.share.map_or(1, |share| share.of) as u64;
    // Stages that share a ledger share the room for records, too. The others have equal parts of both.
    let shares = config.share.is_some_and(|share| share.inherited.is_some());
    let records = config.prefixes.ram.saturating_mul(if shares { 1 } else { stages });
    // Records lie in the host's memory.
    let limit = if backend.has_own_memory() { limit } else { limit.saturating_sub(records) };
    // Copies of experts lie where all but experts does, and no plan has that memory for anything else.
    let has_host = backend.abilities().host.is_some();
    let copies = if has_host { config.expert_cache.set_aside().saturating_mul(stages) } else { 0 };
    let stage = limit.saturating_sub(copies);
    let host = if backend.has_own_memory() && has_host {
        let free = || memory::available_bytes().map(left);
        let limit = config.host_memory_bytes.or_else(free).ok_or(WorkerError::MemoryUnknown)?;
        limit.saturating_sub(records)
    } else {
        0
    };
    let limit = Amount { stage, host };
    match config.share.and_then(|share| Some((share, share.inherited?))) {
        Some((share, files)) => Ok(Ledger::of_node(files.ledger, share, limit)?),
        // A stage that shares no ledger has an equal part.
        None => Ok(Ledger::alone(Amount { stage: stage / stages, host: host / stages })),
    }
}

/// A worker that is bound and does not serve yet.
pub struct Bound {
    listener: Listener,
    config: Config,
    secure: Secure,
    worker: Arc<Worker>,
    stop: CancellationToken,
}

impl Bound {
    /// Opens the cache, joins the cluster if it is to, and binds the socket.
    ///
    /// # Errors
    /// [`WorkerError`].
    pub async fn new(config: Config, backend: Arc<dyn StageBackend>) -> Result<Self, WorkerError> {
        Self::of_node(config, backend, None).await
    }

    /// The same as [`Bound::new`], for a stage of a node with what comes `from` that. It binds nothing where the node listens.
    async fn of_node(
        config: Config,
        backend: Arc<dyn StageBackend>,
        from: Option<FromNode>,
    ) -> Result<Self, WorkerError> {
        let (threads, cpus) = (backend.abilities().threads as usize, &config.cpus);
        let pool = match config.share {
            None => Pool::new(threads, cpus)?,
            Some(_) => Pool::that_lets_others_go_first(threads, cpus)?,
        };
        let cache = Cache::open(&config.cache_dir, config.cache_limit_bytes, pool.clone());
        let ledger = ledger(&config, &*backend)?;
        let loader = Loader {
            ledger: ledger.clone(),
            model_files: config.model_files,
            backend,
            hashes: HashStore::new(cache.dir(), pool.clone()),
            cache,
            pool,
            host_id: host::host_id(),
            instance: host::instance(),
        };
        let (accepted, words) = from.map(|from| (from.accepted, from.words)).unzip();
        let secure = Secure::of(&config, words).await?;
        let accepted = accepted.filter(|_| config.is_behind_node);
        let listener = listener(&config, &secure.network, accepted).await?;
        let stop = CancellationToken::new();
        let home = Home::of(&config.cache_dir, Rate::new(config.record_rate));
        let prefixes = open_prefixes(&config, &ledger, home.clone()).await?;
        let worker = Worker::new(loader, secure.network.clone(), home, stop.clone());
        let worker = Arc::new(worker.with_prefixes(prefixes));
        Ok(Self { listener, config, secure, worker, stop })
    }

    /// Where it listens, with the real port.
    pub fn address(&self) -> &Address {
        self.listener.address()
    }

    /// Serves until `shutdown` is ready. Lanes then end with that reason.
    ///
    /// # Errors
    /// [`WorkerError::Net`].
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), WorkerError> {
        let Self { listener, config, secure, worker, stop } = self;
        let advertised = advertised(&config, listener.address()).await;
        let pace = Arc::new(Pace::default());
        let control = WorkerServer::new(ControlService::new(worker.clone(), pace.clone()))
            .max_decoding_message_size(MAX_CONTROL_BYTES);
        let copies = CopiesServer::new(CopiesService::new(worker.clone(), pace.clone()))
            .max_decoding_message_size(MAX_PIECE_BYTES);
        let pipeline = PipelineServer::new(PipelineService::new(worker.clone(), pace))
            .max_decoding_message_size(MAX_FRAME_BYTES);
        let router = server().add_service(control).add_service(pipeline).add_service(copies);
        let serving = listener.serve(router, stop.clone().cancelled_owned());
        let joined = worker.clone();
        let joining = async {
            match config.join {
                Some(coordinator) => match keep_joining(joined, coordinator, advertised).await {},
                None => std::future::pending().await,
            }
        };
        tokio::pin!(serving);
        let keeping = async { match secure.keep().await {} };
        let looking = async { match worker.clone().look_at_disks().await {} };
        tokio::select! {
            served = &mut serving => return Ok(served?),
            () = joining => {}
            () = keeping => {}
            () = looking => {}
            () = shutdown => {}
            stuck = worker.stuck() => return Err(stuck.into()),
        }
        let backend = worker.loader().backend.clone();
        // A panic there was printed: the records are then older.
        let _ = tokio::task::spawn_blocking(move || backend.write_records()).await;
        stop.cancel();
        // Calls that do not end by themselves are cut when the process or the runtime ends.
        match tokio::time::timeout(LEAVE_WITHIN, serving).await {
            Ok(served) => Ok(served?),
            Err(_) => Ok(()),
        }
    }
}

/// Where a worker's connections come from: its own socket, or the node that has `accepted` them.
async fn listener(
    config: &Config,
    network: &Network,
    accepted: Option<mpsc::Receiver<TcpStream>>,
) -> Result<Listener, NetError> {
    let listen = listen_address(config).await?;
    match (accepted, &config.listen) {
        (Some(accepted), _) => network.behind(&listen, accepted, Plain::Refused).await,
        (None, Some(_)) => network.bind(&listen, Plain::Refused).await,
        (None, None) => {
            let bind = |at: Address| async move { network.bind(&at, Plain::Refused).await };
            bind_near(listen, bind).await
        }
    }
}

/// Binds `address` with `bind`, or where other workers of this machine are there already, a port after it.
pub(crate) async fn bind_near<T, F: Future<Output = Result<T, NetError>>>(
    address: Address,
    bind: impl Fn(Address) -> F,
) -> Result<T, NetError> {
    let Address::Tcp { host, port: first, stage } = address else { return bind(address).await };
    let last = first.saturating_add(MAX_PORTS - 1);
    let mut port = first;
    loop {
        let address = Address::Tcp { host: host.clone(), port, stage };
        match bind(address.clone()).await {
            Err(NetError::Bind { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && port < last =>
            {
                port += 1;
            }
            bound => {
                if port > first && bound.is_ok() {
                    tracing::info!(%address, "the ports before it are taken, by other workers of this machine perhaps");
                }
                return bound;
            }
        }
    }
}

/// Where it listens: as said, or on the address by which this machine reaches the coordinator.
pub(crate) async fn listen_address(config: &Config) -> Result<Address, NetError> {
    match (&config.listen, &config.join) {
        (Some(listen), _) => Ok(listen.clone()),
        (None, Some(coordinator)) => {
            let host = address_towards(coordinator).await?.to_string();
            Ok(Address::tcp(host, DEFAULT_PORT))
        }
        (None, None) => Ok(Address::tcp("127.0.0.1", DEFAULT_PORT)),
    }
}

/// The address that the coordinator is to dial: the advertised one, or else the listening one. A worker that listens
/// on all addresses takes the one from which the coordinator sees it.
async fn advertised(config: &Config, listens: &Address) -> Address {
    if let Some(advertise) = &config.advertise {
        return advertise.clone();
    }
    let (Some(coordinator), Address::Tcp { host, port, stage }) = (&config.join, listens) else {
        return listens.clone();
    };
    let is_all = host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_unspecified());
    match address_towards(coordinator).await {
        Ok(ip) if is_all => Address::Tcp { host: ip.to_string(), port: *port, stage: *stage },
        _ => listens.clone(),
    }
}

/// Runs a worker with the engine of this machine until `shutdown` is ready, or until its standard input ends where
/// the settings say so. When `wish` is ready, it leaves in order: as soon as no lane is open, or after
/// [`DRAIN_WITHIN`]. When it can be dialled it prints one line on standard output: [`READY_PREFIX`] and the address.
///
/// # Errors
/// [`WorkerError`].
pub async fn run(
    config: Config,
    shutdown: impl Future<Output = ()>,
    wish: impl Future<Output = ()> + Send + 'static,
) -> Result<(), WorkerError> {
    let settings = config.clone();
    let measured = tokio::task::spawn_blocking(move || cpu_backend(&settings)).await;
    let backend = measured.map_err(|error| WorkerError::Lost(error.to_string()))??;
    let network = network_runtime(&config).map_err(WorkerError::Runtime)?;
    let stop = CancellationToken::new();
    let mut serving = network.spawn(serve_until(config, backend, stop.clone(), wish));
    let result = tokio::select! {
        result = &mut serving => result,
        () = shutdown => {
            stop.cancel();
            serving.await
        }
    };
    network.shutdown_background();
    result.unwrap_or_else(|error| Err(WorkerError::Lost(error.to_string())))
}

/// How long a worker that is asked to leave waits for its layers to be taken by others.
pub const DRAIN_WITHIN: Duration = Duration::from_secs(30);

/// The threads that receive and send. Their own runtime, so that they are few and where the
/// stage's threads are.
fn network_runtime(config: &Config) -> io::Result<tokio::runtime::Runtime> {
    let cpus = config.cpus.clone();
    let next = AtomicUsize::new(0);
    let pin = move || {
        if !cpus.is_empty() {
            let id = cpus[next.fetch_add(1, Ordering::Relaxed) % cpus.len()];
            if !core_affinity::set_for_current(core_affinity::CoreId { id }) {
                tracing::warn!(cpu = id, "cannot pin a network thread to this CPU");
            }
        }
    };
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(NETWORK_THREADS)
        .thread_name("network")
        .on_thread_start(pin)
        .enable_all()
        .build()
}

/// What the other stages of a node need not measure again.
fn measured(abilities: &Abilities) -> Measured {
    let beside = |host: HostAbility| Beside { host: host.speeds, sent: host.sent };
    Measured {
        device: abilities.kernels.clone(),
        own: abilities.speeds,
        beside: abilities.host.map(beside),
    }
}

fn say_ready(measured: Option<Measured>, address: &Address) -> io::Result<()> {
    let mut out = io::stdout();
    if let Some(measured) = measured {
        writeln!(out, "{MEASURED_PREFIX}{}", serde_json::to_string(&measured)?)?;
    }
    writeln!(out, "{READY_PREFIX}{address}").and_then(|()| out.flush())
}

async fn serve_until(
    config: Config,
    backend: Arc<dyn StageBackend>,
    stop: CancellationToken,
    wish: impl Future<Output = ()>,
) -> Result<(), WorkerError> {
    let exit_with_stdin = config.exit_with_stdin;
    let of_node = config.share.map(|_| parent::of_node()).transpose();
    let (from, node_gone) = of_node.map_err(WorkerError::Runtime)?.unzip();
    let mut node_gone = std::pin::pin!(async {
        match node_gone {
            Some(gone) => drop(gone.await),
            None => std::future::pending().await,
        }
    });
    let measured = config.share.map(|_| measured(backend.abilities()));
    let mut wish = std::pin::pin!(wish);
    let bound = tokio::select! {
        bound = Bound::of_node(config, backend, from) => bound?,
        // It waits for a coordinator that does not answer.
        () = stop.cancelled() => return Ok(()),
        () = &mut wish => return Ok(()),
        () = &mut node_gone => return Ok(()),
    };
    say_ready(measured, bound.address()).map_err(WorkerError::Ready)?;
    tracing::info!(address = %bound.address(), "worker listens");
    let orphaned = async {
        if exit_with_stdin { parent::ended().await } else { std::future::pending().await }
    };
    let worker = bound.worker.clone();
    let drained = async {
        wish.await;
        let within = DRAIN_WITHIN.as_secs();
        tracing::info!(
            within,
            "draining: the line goes on without this worker, if the others have room"
        );
        if tokio::time::timeout(DRAIN_WITHIN, worker.drain()).await.is_err() {
            tracing::warn!(
                "the worker leaves a running line whose other workers have not taken its layers"
            );
        }
    };
    let leave = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = drained => {}
            () = node_gone => tracing::info!("the node of this stage is gone"),
            () = orphaned => tracing::info!("standard input ended: the parent process is gone"),
        }
    };
    bound.serve(leave).await
}
