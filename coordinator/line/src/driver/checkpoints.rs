//! Restores sequences from copies of their states. Before the scheduler hears of a new line, the driver asks the
//! workers which copies they have. States are put back beside the ubatches.
//!
//! Before a line is taken down as planned, its stages are told to keep their states. The next line is settled when
//! all restored sequences have their states, or when that takes too long. The supervisor that took the line down is
//! then told.

use brigade_proto::task;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_engine::batch::{CopyName, SeqOp, SlotId, UBatch};
use brigade_sched::{Event, Interrupted, RequestId};
use tokio::sync::{mpsc, oneshot};

use super::{Driver, records};
use crate::measured::metrics;
use crate::stages::open_line::{Moved, OpenLine};
use crate::stages::prefix_names::Salt;
use crate::stages::states::{Choice, PutSlot, StateAccess};

/// How long sequences may wait for a place on the line that their states have moved to. After that those that still wait
/// are computed again.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);

/// News that the driver may be behind with.
const NEWS_QUEUE: usize = 64;

/// Results of tasks that deal with copies.
#[derive(Debug)]
pub(super) enum News {
    /// The ways in which requests can go back are known.
    Found {
        /// The line's epoch.
        epoch: u64,
        /// How each request that has copies can go back.
        choices: HashMap<RequestId, Choice>,
    },
    /// A state is on every stage, or is not.
    PutBack {
        /// The line's epoch.
        epoch: u64,
        /// The request whose state it is.
        request: RequestId,
        /// Bytes that moved between workers for it, or the reason why it failed.
        result: Result<u64, String>,
    },
}

/// A state to be put back when its slot is open.
#[derive(Debug)]
struct Waiting {
    request: RequestId,
    slot: SlotId,
    name: CopyName,
    tokens: Vec<u32>,
    /// The ubatch that opens the slot, once it was sent.
    opened_by: Option<u64>,
}

/// Copies of the line that is up, or comes.
#[derive(Debug)]
pub(super) struct Checkpoints {
    choices: HashMap<RequestId, Choice>,
    waiting: Vec<Waiting>,
    news: mpsc::Sender<News>,
    /// Notified when the line that parts may be taken down.
    parting: Option<oneshot::Sender<()>>,
    /// The stages of a line before this one keep states.
    parted: bool,
    /// The line that is up and not settled.
    settling: Option<Settling>,
}

/// A line whose sequences do not all have their states.
#[derive(Debug)]
struct Settling {
    since: Instant,
    told: oneshot::Sender<Moved>,
    moved: Moved,
    /// The scheduler knows of the line.
    is_known: bool,
}

impl Checkpoints {
    /// Without copies. The receiver gets the tasks' results.
    pub(super) fn new() -> (Self, mpsc::Receiver<News>) {
        let (news, receiver) = mpsc::channel(NEWS_QUEUE);
        let (choices, waiting, parting, parted, settling) = Default::default();
        (Self { choices, waiting, news, parting, parted, settling }, receiver)
    }

    /// The line is to part; `done` is told when it has.
    pub(super) fn part(&mut self, done: oneshot::Sender<()>) {
        self.parting = Some(done);
    }

    /// Whether the supervisor waits until the line is empty.
    fn is_parting(&self) -> bool {
        self.parting.is_some()
    }

    /// The stages keep their states.
    pub(super) fn parted(&mut self) {
        if let Some(done) = self.parting.take() {
            self.parted = true;
            // The supervisor may have gone on without waiting.
            let _ = done.send(());
        }
    }

    /// Whether a line that comes may have copies.
    pub(super) fn are_there(&self, line: &OpenLine) -> bool {
        self.parted || line.states.takes_copies()
    }

    /// A line is there, and `told` once it is settled.
    pub(super) fn settle(&mut self, told: oneshot::Sender<Moved>) {
        let (since, moved) = (Instant::now(), Moved::default());
        self.settling = Some(Settling { since, told, moved, is_known: false });
    }

    /// The scheduler knows of the line.
    pub(super) fn known(&mut self) {
        self.settling.iter_mut().for_each(|settling| settling.is_known = true);
    }

    /// The line is settled if no sequence waits for its state, or has for too long: whether it is now.
    pub(super) fn is_settled(&mut self, is_restoring: bool) -> bool {
        // Copies of checkpoints stay; parting ones should not for long.
        let parted = self.parted;
        let may = |settling: &mut Settling| {
            let is_late = parted && settling.since.elapsed() > SETTLED_WITHIN;
            settling.is_known && (!is_restoring || is_late)
        };
        let Some(Settling { told, moved, .. }) = self.settling.take_if(may) else { return false };
        self.parted = false;
        // The supervisor may be at another line.
        let _ = told.send(moved);
        true
    }

    fn put_back(&mut self, moved_bytes: u64) {
        if let Some(Settling { moved, .. }) = &mut self.settling {
            moved.sequences += 1;
            moved.bytes += moved_bytes;
        }
    }

    /// Finds out what a line can go back to; [`News::Found`] follows. With a salt, records of prefixes are looked for where
    /// there is no copy.
    pub(super) fn look(&self, line: &OpenLine, interrupted: Vec<Interrupted>, salt: Option<Salt>) {
        let (epoch, access, news) = (line.epoch, line.states.clone(), self.news.clone());
        task::spawn(async move {
            let of = |i: Interrupted| ((i.request, i.space), (i.name, i.tokens));
            let (who, sought): (Vec<_>, Vec<_>) = interrupted.into_iter().map(of).unzip();
            let (requests, spaces): (Vec<RequestId>, Vec<_>) = who.into_iter().unzip();
            let mut found = access.find_copies(&sought).await;
            if let Some(salt) = salt {
                let of = spaces.into_iter().zip(sought).map(|(space, (_, tokens))| (space, tokens));
                records::instead_of_copies(&access, salt, &mut found, of).await;
            }
            let choices: HashMap<RequestId, Choice> =
                requests.iter().zip(found).filter_map(|(r, choice)| Some((*r, choice?))).collect();
            if !requests.is_empty() {
                let (paused, go_back) = (requests.len(), choices.len());
                tracing::info!(epoch, paused, go_back, "streams go on from copies of their states");
            }
            // The driver may be gone; then nobody goes on.
            let _ = news.send(News::Found { epoch, choices }).await;
        });
    }

    /// Keeps how requests go back; to which positions.
    pub(super) fn found(
        &mut self,
        choices: HashMap<RequestId, Choice>,
    ) -> BTreeMap<RequestId, u32> {
        self.choices = choices;
        self.choices.iter().map(|(request, choice)| (*request, choice.len)).collect()
    }

    /// A state is wanted in a slot that a ubatch among the same actions opens.
    pub(super) fn wanted(
        &mut self,
        request: RequestId,
        slot: SlotId,
        name: CopyName,
        tokens: Vec<u32>,
    ) {
        self.waiting.push(Waiting { request, slot, name, tokens, opened_by: None });
    }

    /// A ubatch goes out: it may open slots.
    pub(super) fn sent(&mut self, ubatch: &UBatch) {
        for waiting in self.waiting.iter_mut().filter(|w| w.opened_by.is_none()) {
            let opens =
                |op: &SeqOp| matches!(op, SeqOp::Open { slot, .. } if *slot == waiting.slot);
            if ubatch.ops.iter().any(opens) {
                waiting.opened_by = Some(ubatch.id);
            }
        }
    }

    /// Starts what may start; `oldest` is the first ubatch that is not back, `newest` the last that went out.
    /// [`News::PutBack`] follows for each.
    pub(super) fn start(
        &mut self,
        oldest: Option<u64>,
        newest: Option<u64>,
        epoch: u64,
        access: &Arc<dyn StateAccess>,
    ) {
        let is_open = |waiting: &mut Waiting| {
            waiting.opened_by.is_some_and(|id| oldest.is_none_or(|oldest| oldest > id))
        };
        for Waiting { request, slot, name, tokens, .. } in self.waiting.extract_if(.., is_open) {
            let choice = self.choices.remove(&request);
            let (access, news) = (access.clone(), self.news.clone());
            let to = PutSlot { slot, unchanged_since: newest };
            task::spawn(async move {
                let result = match choice {
                    Some(choice) => access.put_back(to, name, tokens, choice).await,
                    None => Err("no copies were chosen to restore it from".to_string()),
                };
                // The driver may be gone; then nobody goes on.
                let _ = news.send(News::PutBack { epoch, request, result }).await;
            });
        }
    }

    /// Forgets the states that were to be put back, since the line is lost.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.choices.clear();
        (self.parting, self.settling) = (None, None);
    }
}

impl Driver {
    /// Takes over an open line. The scheduler is told when it is known which positions its sequences can go back to.
    pub(super) fn line_opened(&mut self, mut line: OpenLine) {
        let (epoch, spec) = (line.epoch, line.spec);
        if let Some(told) = line.settled.take() {
            self.checkpoints.settle(told);
        }
        let interrupted = self.sched.interrupted();
        let salt = self.salt_to_find(&line).filter(|_| !interrupted.is_empty());
        let looks = self.checkpoints.are_there(&line) || salt.is_some();
        if looks {
            self.checkpoints.look(&line, interrupted, salt);
        }
        self.line = Some(line);
        if !looks {
            self.step(Event::LineUp { epoch, line: spec });
            self.checkpoints.known();
            self.settle();
        }
    }

    /// The line is about to be taken down as planned; `done` is told when its stages keep their states, and dropped where
    /// there is no line that could.
    pub(super) fn part(&mut self, done: oneshot::Sender<()>) {
        if self.line.is_some() {
            self.checkpoints.part(done);
            self.step(Event::Part);
        }
    }

    /// Says so when all sequences have their states.
    pub(super) fn settle(&mut self) {
        let is_restoring = self.sched.is_restoring();
        if self.checkpoints.is_settled(is_restoring) && is_restoring {
            self.step(Event::Restorable(BTreeMap::new()));
        }
    }

    /// Something happened to copies of a line's sequences.
    pub(super) fn copies_news(&mut self, news: News) {
        let is_up = |epoch: u64| self.line.as_ref().filter(|line| line.epoch == epoch);
        match news {
            News::Found { epoch, choices } => {
                let Some(spec) = is_up(epoch).map(|line| line.spec) else { return };
                let found = self.checkpoints.found(choices);
                self.step(Event::Restorable(found));
                self.step(Event::LineUp { epoch, line: spec });
                self.checkpoints.known();
                if self.checkpoints.is_parting() {
                    self.step(Event::Part);
                }
                self.settle();
            }
            News::PutBack { epoch, request, result } => {
                if is_up(epoch).is_none() {
                    return;
                }
                metrics::put_back(result.as_ref().ok().copied());
                match &result {
                    Ok(moved_bytes) => self.checkpoints.put_back(*moved_bytes),
                    Err(why) => {
                        let sequence = request.0;
                        tracing::warn!(
                            sequence,
                            why,
                            "a stream has no copy to go on from: it is computed again"
                        );
                    }
                }
                self.step(Event::Restored { request, is_there: result.is_ok() });
                self.settle();
            }
        }
    }
}
