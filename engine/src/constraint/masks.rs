//! The masks of a last stage's slots, made on a thread of their own.
//!
//! That thread and the stage's take turns by a lock on each answer: whoever comes first makes the mask, and
//! what is made does not depend on who does.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::{ConstraintError, Running, Vocabulary};
use crate::batch::{Constraint, SeqOp, SlotId};

/// Makes the vocabulary when the first constraint needs it.
pub type VocabularySource = Box<dyn FnOnce() -> Result<Vocabulary, ConstraintError> + Send>;

type Shared = Arc<LazyLock<Result<Vocabulary, ConstraintError>, VocabularySource>>;

/// What is to be prepared: the token that has just been drawn and its place in the answer, if there is one.
struct Job {
    answer: Arc<Mutex<Running>>,
    drawn: Option<(usize, u32)>,
}

/// The answers that are held to a constraint, by slot.
pub struct Masks {
    vocabulary: Shared,
    slots: BTreeMap<SlotId, Arc<Mutex<Running>>>,
    /// The thread's, once there is one; it ends when this is dropped.
    jobs: Option<Sender<Job>>,
}

impl Masks {
    /// None yet.
    pub fn new(source: VocabularySource) -> Self {
        Self { vocabulary: Arc::new(LazyLock::new(source)), slots: BTreeMap::new(), jobs: None }
    }

    /// Follows what happens to sequences: grammars are compiled while prompts are computed.
    pub fn follow(&mut self, ops: &[SeqOp]) {
        for op in ops {
            match op {
                SeqOp::Open { slot, sampler, .. } | SeqOp::Copy { dst: slot, sampler, .. } => {
                    self.slots.remove(slot);
                    if let Some(rule) = sampler.as_ref().and_then(|s| s.constraint.as_ref()) {
                        let answer = self.answer(*slot, rule);
                        self.prepare(Job { answer, drawn: None });
                    }
                }
                SeqOp::Close { slot } => drop(self.slots.remove(slot)),
                SeqOp::Truncate { .. } | SeqOp::Adapt { .. } => {}
                SeqOp::Name { .. } | SeqOp::Checkpoint { .. } => {}
            }
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.slots.clear();
    }

    /// Draws a token that may follow the answer `history[rule.answer_at..]` of a slot by `draw`, which is given
    /// the mask (`None`: any token), and begins with the next mask. `token` tells the drawn token of a result.
    ///
    /// # Errors
    /// As [`Running::mask_after`]; the vocabulary is not there; the history is shorter than its prompt.
    pub fn draw<T>(
        &mut self,
        slot: SlotId,
        rule: &Arc<Constraint>,
        history: &[u32],
        draw: impl FnOnce(Option<&super::Mask>) -> T,
        token: impl FnOnce(&T) -> Option<u32>,
    ) -> Result<T, ConstraintError> {
        let shared = self.vocabulary.clone();
        let vocabulary = LazyLock::force(&shared).as_ref().map_err(Clone::clone)?;
        let answer = history.get(rule.answer_at as usize..).ok_or_else(|| {
            ConstraintError::Stuck(format!("the prompt has {} tokens only", history.len()))
        })?;
        let running = self.answer(slot, rule);
        let drawn = draw(lock(&running).mask_after(vocabulary, answer)?);
        if let Some(token) = token(&drawn) {
            self.prepare(Job { answer: running, drawn: Some((answer.len(), token)) });
        }
        Ok(drawn)
    }

    /// The answer in a slot; a new one if the slot's constraint is another.
    fn answer(&mut self, slot: SlotId, rule: &Arc<Constraint>) -> Arc<Mutex<Running>> {
        let there = self.slots.get(&slot).filter(|r| Arc::ptr_eq(lock(r).rule(), rule)).cloned();
        there.unwrap_or_else(|| {
            let new = Arc::new(Mutex::new(Running::new(rule.clone())));
            self.slots.insert(slot, new.clone());
            new
        })
    }

    /// Hands over to the thread. Without one, the mask is made when it is needed.
    fn prepare(&mut self, job: Job) {
        if self.jobs.is_none() {
            let (sender, jobs) = channel();
            let shared = self.vocabulary.clone();
            let work = move || prepare_all(&jobs, &shared);
            match thread::Builder::new().name("masks".to_owned()).spawn(work) {
                Ok(_) => self.jobs = Some(sender),
                Err(error) => {
                    tracing::warn!(%error, "no thread for masks: they are made when they are needed");
                    return;
                }
            }
        }
        if let Some(jobs) = &self.jobs
            && jobs.send(job).is_err()
        {
            self.jobs = None;
        }
    }
}

impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masks").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

fn prepare_all(jobs: &Receiver<Job>, shared: &Shared) {
    for job in jobs {
        // What is wrong with the vocabulary is told when a token is drawn.
        let Ok(vocabulary) = LazyLock::force(shared).as_ref() else { continue };
        let mut answer = lock(&job.answer);
        if let Some((at, token)) = job.drawn {
            answer.note(vocabulary, at, token);
        }
        answer.prepare(vocabulary);
    }
}

/// A thread that failed in between leaves an answer that says so or is made anew.
fn lock(answer: &Mutex<Running>) -> MutexGuard<'_, Running> {
    answer.lock().unwrap_or_else(PoisonError::into_inner)
}
