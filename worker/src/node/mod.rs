//! A node: a process that runs the stages of its machine. Each stage has a process of its own. So a fault of one
//! touches no other, and its memory is always freed.
//!
//! From outside a node is one port: the node listens there, and hands each connection to the stage that it names. A stage is
//! the program that the node itself is, started from its open file. Its standard input is a socket of the node's, by which
//! connections come: however the node ends, the stages end with it. A stage that ends by itself is started again after a pause
//! that grows. The first stage tests the device and measures the machine undisturbed, and tells the node. The others get
//! its figures, and start at the same time.
//!
//! A coordinator of an older release certifies no stages. Under one the node runs its first stage alone, which has the node's own
//! place in the cluster, as a worker of one stage has it. When a newer coordinator comes, all stages start.

pub mod division;
mod words;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::future::Future;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::words::keep_vouching;
use crate::backend::measure::MEASURED_VARIABLE;
use crate::config::{Config, Secured};
use crate::host::instance;
use crate::identity::credentials::of_node;
use crate::identity::membership::{Membership, MembershipError};
use crate::identity::stage::KEY_PREFIX;
use crate::machine::ledger::Book;
use crate::machine::share::{Inherited, Share};
use crate::machine::turns::Locks;
use crate::run::{MEASURED_PREFIX, READY_PREFIX, bind_near, listen_address};
use brigade_proto::address::Address;
use brigade_proto::net::NetError;
use brigade_proto::net::front::{Front, Speech, Stages};
use brigade_proto::net::handover::Giver;
use brigade_proto::task::joined;

/// Pause before a stage that ended is started again; it doubles with each that did not last ...
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// ... up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A stage that ran this long lasts: the next pause is the first again.
const LASTS_AFTER: Duration = Duration::from_secs(60);
/// How long a stage whose standard input has ended may take to leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(3);

/// The option by which a stage is told where its node listens.
const STAGE_AT: &str = "--stage-at";

/// The option by which a stage is told that its node vouches for it.
const VOUCHED: &str = "--vouched";

/// Why a node ended.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The program's own file cannot be opened or started.
    #[error("cannot start this program's own file for a stage: {0}")]
    Program(io::Error),
    /// The node cannot listen.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The node could not become a member of the cluster.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// There is no way to hand connections to a stage.
    #[error("cannot make the sockets by which a stage is given connections: {0}")]
    Handover(io::Error),
    /// Stages could not take turns, or share the node's memory.
    #[error("cannot make the locks and the ledger that the stages share: {0}")]
    Shared(io::Error),
    /// A stage did not get ready, when it was started first.
    #[error("stage {share} ended before it was ready, with {status}; its log says why")]
    NotReady {
        /// The stage's number.
        share: Share,
        /// How its process ended.
        status: ExitStatus,
    },
    /// The ready line of a stage cannot be passed on.
    #[error("cannot write the ready line to standard output: {0}")]
    Ready(io::Error),
}

/// The orders to the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Run,
    /// End in order.
    Drain,
    /// End at once.
    Stop,
}

/// The settings and processes of a node.
#[derive(Debug)]
pub struct Node {
    /// The open file of this program.
    program: File,
    /// Arguments of each stage, beside that with its number.
    arguments: Vec<OsString>,
    stages: usize,
    /// Where the node listens for its stages; `None`: each listens itself.
    at: Option<Address>,
    /// The ways to the stages that are ready.
    ways: Arc<Stages>,
    /// The node's place in the cluster, by which it vouches for its stages; `None`: they need no word.
    membership: Option<Arc<Membership>>,
    /// The locks by which stages take turns.
    locks: Locks,
    /// What each stage has of the node's memory.
    ledger: Book,
    /// What a stage has measured of the machine, once it has.
    measured: OnceLock<String>,
    /// Whether the coordinator certifies stages, where no membership says so: as if it did.
    certified: watch::Sender<bool>,
    /// Whether the log has it that the coordinator is of an older release.
    has_warned: AtomicBool,
}

impl Node {
    /// A node of `stages` stages, each with these arguments.
    ///
    /// # Errors
    /// The program's own file cannot be opened, or the system has no room for locks.
    pub fn new(arguments: Vec<OsString>, stages: usize) -> Result<Self, NodeError> {
        // The running program, also where its path has another program by now.
        let program = File::open("/proc/self/exe").map_err(NodeError::Program)?;
        let locks = Locks::new().map_err(NodeError::Shared)?;
        let ledger = Book::new(instance()).map_err(NodeError::Shared)?;
        let (at, ways, membership, measured) = (None, Arc::default(), None, OnceLock::new());
        let certified = watch::channel(true).0;
        Ok(Self {
            program,
            arguments,
            stages,
            at,
            ways,
            membership,
            locks,
            ledger,
            measured,
            certified,
            has_warned: AtomicBool::new(false),
        })
    }

    /// Keeps the stages running until `shutdown` is ready. When `wish` is, they leave in order. Each says on standard output
    /// where it listens, when it is first ready. `config` has the settings of the node.
    ///
    /// # Errors
    /// The node cannot listen, or a stage does not get ready at all.
    pub async fn run(
        mut self,
        config: &Config,
        shutdown: impl Future<Output = ()>,
        wish: impl Future<Output = ()>,
    ) -> Result<(), NodeError> {
        let (mut shutdown, mut wish) = (std::pin::pin!(shutdown), std::pin::pin!(wish));
        self.membership = tokio::select! {
            joined = of_node(config) => joined?.map(Arc::new),
            // It waits for a coordinator that does not answer.
            () = &mut shutdown => return Ok(()),
            () = &mut wish => return Ok(()),
        };
        let membership = self.membership.clone();
        let renewing = async {
            match membership {
                Some(membership) => membership.keep_renewing().await,
                None => std::future::pending().await,
            }
        };
        let mut renewing = std::pin::pin!(renewing);
        let front = front(config).await?;
        self.at = front.as_ref().map(|front| front.address().clone());
        let ways = self.ways.clone();
        let handing = async {
            match front {
                Some(front) => front.serve(ways).await,
                None => std::future::pending().await,
            }
        };
        let mut handing = std::pin::pin!(handing);
        let (mode, told) = watch::channel(Mode::Run);
        let certified = match &self.membership {
            Some(membership) => membership.certifies_stages(),
            None => self.certified.subscribe(),
        };
        let (turn, node, mut stages) = (Arc::new(Mutex::new(())), Arc::new(self), JoinSet::new());
        for number in 1..=node.stages {
            let files =
                Inherited { turns: node.locks.inherited(), ledger: node.ledger.inherited() };
            let share = Share { inherited: Some(files), ..Share::new(number, node.stages) };
            let (node, turn, mode) = (node.clone(), turn.clone(), told.clone());
            let certified = certified.clone();
            stages.spawn(async move { Stage { share, node, turn, mode, certified }.keep().await });
        }
        let mut result = Ok(());
        loop {
            tokio::select! {
                never = &mut handing => match never {},
                never = &mut renewing => match never {},
                () = &mut shutdown, if *mode.borrow() != Mode::Stop => drop(mode.send_replace(Mode::Stop)),
                () = &mut wish, if *mode.borrow() == Mode::Run => drop(mode.send_replace(Mode::Drain)),
                ended = stages.join_next() => {
                    let Some(ended) = ended else { return result };
                    let ended = joined(ended).await;
                    if ended.is_err() && result.is_ok() {
                        result = ended;
                        mode.send_replace(Mode::Stop);
                    }
                }
            }
        }
    }

    fn command(&self, share: Share, stdin: OwnedFd) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()));
        command.arg0("brigade").args(&self.arguments).arg("--stage").arg(share.argument());
        command.envs(self.measured.get().map(|measured| (MEASURED_VARIABLE, measured)));
        command.args(self.membership.iter().map(|_| VOUCHED));
        command.args(self.at.iter().flat_map(|at| [STAGE_AT.to_owned(), at.to_string()]));
        command.stdin(Stdio::from(stdin)).stdout(Stdio::piped()).stderr(Stdio::inherit());
        // Signals of a terminal reach the node alone, which then decides.
        command.process_group(0).kill_on_drop(true);
        command
    }
}

/// The port of a node, unless each of its stages has one.
async fn front(config: &Config) -> Result<Option<Front>, NetError> {
    if config.stage_ports.is_some() {
        return Ok(None);
    }
    let speech = match config.secured {
        Secured::No => Speech::Plain { insecure_network: config.insecure_network },
        Secured::Parent | Secured::External(_) | Secured::Member { .. } | Secured::OfNode => {
            Speech::Tls
        }
    };
    let address = listen_address(config).await?;
    let bind = |at: Address| async move { Front::bind(&at, speech).await };
    let front = match config.listen {
        Some(_) => bind(address).await?,
        None => bind_near(address, bind).await?,
    };
    tracing::info!(address = %front.address(), "the node listens for its stages");
    Ok(Some(front))
}

/// One stage, over all its lives.
struct Stage {
    share: Share,
    node: Arc<Node>,
    /// The lock for starting a process.
    turn: Arc<Mutex<()>>,
    mode: watch::Receiver<Mode>,
    /// Whether the coordinator certifies stages; otherwise the first one has the node's place.
    certified: watch::Receiver<bool>,
}

/// A process of a stage.
struct Life {
    /// Whether it has the node's place.
    is_alone: bool,
    /// Whether it was asked to leave, since the coordinator is another one.
    makes_way: bool,
    child: Child,
    /// The way to it, whose end tells it to leave.
    way: Giver,
    began: Instant,
}

impl Stage {
    async fn keep(mut self) -> Result<(), NodeError> {
        let (mut pause, mut was_ready) = (FIRST_PAUSE, false);
        loop {
            self.wait_for_place().await;
            let mut turn = Some(self.turn.clone().lock_owned().await);
            if self.node.measured.get().is_some() {
                // There is nothing left to measure.
                turn = None;
            }
            if *self.mode.borrow() != Mode::Run {
                return Ok(());
            }
            let is_alone = !*self.certified.borrow_and_update();
            if is_alone && self.share.number > 1 {
                continue;
            }
            let mut life = self.begin(is_alone)?;
            let lines = life.child.stdout.take().map(|out| BufReader::new(out).lines());
            let number = self.share.in_address();
            let start = Start { node: self.node.clone(), way: life.way.clone(), number, is_alone };
            let (mut lines, mut vouching) = (lines, JoinSet::new());
            let ready = start.ready(lines.as_mut(), &mut vouching);
            let status = match self.until(&mut life, ready).await {
                Ok(line) => {
                    drop(turn);
                    if line.is_some() {
                        self.node.ways.open(self.share.number, life.way.clone());
                    }
                    if let Some(line) = line.filter(|_| !was_ready) {
                        was_ready = true;
                        self.say(&line)?;
                    }
                    self.until(&mut life, std::future::pending::<Infallible>()).await.err()
                }
                Err(status) => Some(status),
            };
            // The process is gone, and with it what it had.
            self.node.ledger.forget(self.share);
            self.node.locks.forget(self.share.number);
            self.node.ways.close(self.share.number);
            if *self.mode.borrow() != Mode::Run {
                return Ok(());
            }
            if life.makes_way {
                pause = FIRST_PAUSE;
                continue;
            }
            let share = self.share;
            match status {
                Some(status) if !was_ready => return Err(NodeError::NotReady { share, status }),
                _ => {}
            }
            if life.began.elapsed() >= LASTS_AFTER {
                pause = FIRST_PAUSE;
            }
            let how = status.map_or_else(String::new, |status| status.to_string());
            tracing::warn!(stage = %share, how, ?pause, "a stage has ended: it is started again");
            // The node may be told to end in this time.
            let _ = timeout(pause, self.mode.changed()).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn begin(&self, is_alone: bool) -> Result<Life, NodeError> {
        let (way, stdin) = Giver::pair().map_err(NodeError::Handover)?;
        let share = if is_alone { Share { of: 1, ..self.share } } else { self.share };
        let child = self.node.command(share, stdin).spawn().map_err(NodeError::Program)?;
        tracing::info!(stage = %share, pid = child.id(), "a stage begins");
        if is_alone && !self.node.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "this coordinator is of an older release and certifies no stages of nodes: the node runs as a worker of one stage \
                 until the coordinator is newer"
            );
        }
        Ok(Life { is_alone, makes_way: false, child, way, began: Instant::now() })
    }

    /// Ready when the stage may run, or the node is to end. The first stage may always: it stands for the node where stages are not
    /// certified.
    async fn wait_for_place(&mut self) {
        let Self { certified, mode, share, .. } = self;
        if share.number == 1 {
            return;
        }
        tokio::select! {
            // An error is the node's end.
            _ = certified.wait_for(|certified| *certified) => {}
            _ = mode.wait_for(|mode| *mode != Mode::Run) => {}
        }
    }

    /// The next of `news`, or the exit status if the process ends first. The process is told to leave when the node
    /// is.
    async fn until<T>(
        &mut self,
        life: &mut Life,
        news: impl Future<Output = T>,
    ) -> Result<T, ExitStatus> {
        let mut news = std::pin::pin!(news);
        loop {
            tokio::select! {
                ended = life.child.wait() => return Err(ended.unwrap_or_default()),
                changed = self.mode.changed() => {
                    // The node's end is the stage's.
                    let mode = if changed.is_ok() { *self.mode.borrow() } else { Mode::Stop };
                    match mode {
                        Mode::Run => {}
                        Mode::Drain => life.ask_to_leave(),
                        Mode::Stop => return Err(life.end().await),
                    }
                }
                Ok(()) = self.certified.changed(), if !life.makes_way => {
                    let is_alone = !*self.certified.borrow();
                    if is_alone != life.is_alone {
                        tracing::info!(is_alone, "another coordinator has come: the stage makes way for what this one certifies");
                        life.makes_way = true;
                        life.ask_to_leave();
                    }
                }
                news = &mut news => return Ok(news),
            }
        }
    }

    /// Prints where a stage listens, for the process that started the node.
    fn say(&self, line: &str) -> Result<(), NodeError> {
        let address = line.strip_prefix(READY_PREFIX).unwrap_or(line);
        let mut out = io::stdout().lock();
        let said = writeln!(out, "{READY_PREFIX}{address}").and_then(|()| out.flush());
        said.map_err(NodeError::Ready)
    }
}

/// A process of a stage that is not ready yet.
struct Start {
    node: Arc<Node>,
    way: Giver,
    number: u8,
    /// Whether it has the node's place.
    is_alone: bool,
}

impl Start {
    /// The line by which the process says that it is ready. Before that it says what it has measured, and its key, for which the
    /// node then vouches.
    async fn ready(
        self,
        lines: Option<&mut Lines<BufReader<ChildStdout>>>,
        vouching: &mut JoinSet<()>,
    ) -> Option<String> {
        let Self { node, way, number, is_alone } = self;
        let lines = lines?;
        loop {
            let line = lines.next_line().await.ok().flatten()?;
            if let Some(measured) = line.strip_prefix(MEASURED_PREFIX) {
                drop(node.measured.set(measured.to_owned()));
            } else if let Some(key) = line.strip_prefix(KEY_PREFIX) {
                let membership = node.membership.clone();
                if let Some((membership, key)) = membership.zip(key.parse().ok()) {
                    let way = way.clone();
                    vouching.spawn(keep_vouching(membership, number, key, is_alone, way));
                }
            } else {
                return Some(line);
            }
        }
    }
}

impl Life {
    fn ask_to_leave(&self) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        // One that has ended needs no signal.
        if let Some(Err(error)) = pid.map(|pid| kill_process(pid, Signal::TERM)) {
            tracing::warn!(%error, "a stage cannot be told to leave");
        }
    }

    async fn end(&mut self) -> ExitStatus {
        self.way.end();
        match timeout(LEAVE_WITHIN, self.child.wait()).await {
            Ok(status) => status.unwrap_or_default(),
            Err(_) => {
                // An error means that it has ended already.
                let _ = self.child.kill().await;
                ExitStatus::default()
            }
        }
    }
}
