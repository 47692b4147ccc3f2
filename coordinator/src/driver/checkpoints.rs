//! Checkpoints as the driver sees them: what a line that comes can go back to is found out before the scheduler hears of
//! it, and states are put back beside the ubatches.

use std::collections::{BTreeMap, HashMap};

use brigade_engine::batch::{CopyName, SeqOp, SlotId, UBatch};
use tokio::sync::mpsc;

use super::Driver;
use crate::cluster::{Choice, OpenLine, StateAccess};
use crate::metrics;
use crate::sched::{Event, Interrupted, RequestId};

/// News that the driver may be behind with.
const NEWS_QUEUE: usize = 64;

/// What happened to copies of a line's sequences.
#[derive(Debug)]
pub(super) enum News {
    /// It is known which requests can go back, and how.
    Found {
        /// Of the line.
        epoch: u64,
        /// Those that can.
        choices: HashMap<RequestId, Choice>,
    },
    /// A state is on every stage, or is not.
    PutBack {
        /// Of the line.
        epoch: u64,
        /// Whose.
        request: RequestId,
        /// Why it is not.
        result: Result<(), String>,
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
}

impl Checkpoints {
    /// None yet; the receiver has the news.
    pub(super) fn new() -> (Self, mpsc::Receiver<News>) {
        let (news, receiver) = mpsc::channel(NEWS_QUEUE);
        (Self { choices: HashMap::new(), waiting: Vec::new(), news }, receiver)
    }

    /// Finds out what a line can go back to; [`News::Found`] follows.
    pub(super) fn look(&self, line: &OpenLine, interrupted: Vec<Interrupted>) {
        let (epoch, state_access, news) =
            (line.epoch, line.state_access.clone(), self.news.clone());
        tokio::spawn(async move {
            let (requests, sought): (Vec<_>, Vec<_>) =
                interrupted.into_iter().map(|i| (i.request, (i.name, i.tokens))).unzip();
            let found = state_access.find_copies(&sought).await;
            let choices: HashMap<RequestId, Choice> =
                requests.iter().zip(found).filter_map(|(r, choice)| Some((*r, choice?))).collect();
            if !requests.is_empty() {
                let (paused, go_back) = (requests.len(), choices.len());
                tracing::info!(epoch, paused, go_back, "streams go on from checkpoints");
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

    /// Starts what may start; `oldest` is the first ubatch that is not back. [`News::PutBack`] follows for each.
    pub(super) fn start(&mut self, oldest: Option<u64>, epoch: u64, state_access: &StateAccess) {
        let is_open = |waiting: &mut Waiting| {
            waiting.opened_by.is_some_and(|id| oldest.is_none_or(|oldest| oldest > id))
        };
        for Waiting { request, slot, name, tokens, .. } in self.waiting.extract_if(.., is_open) {
            let choice = self.choices.remove(&request);
            let (state_access, news) = (state_access.clone(), self.news.clone());
            tokio::spawn(async move {
                let result = match choice {
                    Some(choice) => state_access.put_back(slot, name, tokens, choice).await,
                    None => Err("nobody said how it goes back".to_string()),
                };
                // The driver may be gone; then nobody goes on.
                let _ = news.send(News::PutBack { epoch, request, result }).await;
            });
        }
    }

    /// The line is gone, and what was to be put back on it.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.choices.clear();
    }
}

impl Driver {
    /// Something happened to copies of a line's sequences.
    pub(super) fn copies_news(&mut self, news: News) {
        let is_up = |epoch: u64| self.line.as_ref().filter(|line| line.epoch == epoch);
        match news {
            News::Found { epoch, choices } => {
                let Some(spec) = is_up(epoch).map(|line| line.spec) else { return };
                let found = self.checkpoints.found(choices);
                self.step(Event::Restorable(found));
                self.step(Event::LineUp { epoch, line: spec });
            }
            News::PutBack { epoch, request, result } => {
                if is_up(epoch).is_none() {
                    return;
                }
                metrics::put_back(result.is_ok());
                if let Err(why) = &result {
                    let sequence = request.0;
                    tracing::warn!(sequence, why, "no checkpoint to go on from: computed again");
                }
                self.step(Event::Restored { request, is_there: result.is_ok() });
            }
        }
    }
}
