//! The masks of a last stage's slots, made on threads of their own.
//!
//! The stage's thread never waits for one. Where a mask is not there when its token is to be drawn, the draw is put off
//! ([`Drawn::NotYet`]), and the rows beside it go on. What is made does not depend on when, nor on who else has masks.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::turns::Turns;
use super::work_time::WorkTime;
use super::{ConstraintError, Running, Vocabulary};
use crate::batch::{Constraint, SeqOp, SlotId};

/// Makes the vocabulary when the first constraint needs it.
pub type VocabularySource = Box<dyn FnOnce() -> Result<Vocabulary, ConstraintError> + Send>;

type Shared = Arc<LazyLock<Result<Vocabulary, ConstraintError>, VocabularySource>>;

/// What comes of a draw.
#[derive(Debug, PartialEq, Eq)]
pub enum Drawn<T> {
    /// What was drawn.
    Now(T),
    /// The mask is being made: the same draw is to be asked for again.
    NotYet,
}

/// One answer, and what the threads still have to do for it.
#[derive(Clone, Debug)]
struct Answer(Arc<State>);

#[derive(Debug)]
struct State {
    rule: Arc<Constraint>,
    running: Mutex<Running>,
    /// Jobs that are not done.
    jobs: AtomicUsize,
    /// Microseconds of done ones that nobody was told of.
    spent_us: AtomicU64,
    /// Nobody wants its masks any more.
    gone: AtomicBool,
}

impl std::ops::Deref for Answer {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

/// What is to be prepared.
enum Job {
    /// The first mask of an answer.
    First,
    /// The token that has just been drawn, and its place in the answer.
    Drawn(usize, u32),
    /// All tokens of an answer that had begun elsewhere.
    Known(Vec<u32>),
}

/// The answers that are held to a constraint, by slot.
pub struct Masks {
    vocabulary: Shared,
    slots: BTreeMap<SlotId, Answer>,
    turns: Turns,
}

impl Masks {
    /// None yet.
    pub fn new(source: VocabularySource) -> Self {
        let vocabulary = Arc::new(LazyLock::new(source));
        Self { vocabulary, slots: BTreeMap::new(), turns: Turns::new("masks") }
    }

    /// Follows what happens to sequences: grammars are compiled while prompts are computed.
    pub fn follow(&mut self, ops: &[SeqOp]) {
        for op in ops {
            match op {
                SeqOp::Open { slot, sampler, .. } | SeqOp::Copy { dst: slot, sampler, .. } => {
                    self.forget(*slot);
                    if let Some(rule) = sampler.as_ref().and_then(|s| s.constraint.as_ref()) {
                        let answer = self.answer(*slot, rule);
                        self.prepare(&answer, Job::First);
                    }
                }
                SeqOp::Close { slot } => self.forget(*slot),
                SeqOp::Truncate { .. } | SeqOp::Adapt { .. } | SeqOp::Draw { .. } => {}
                SeqOp::Name { .. } | SeqOp::Checkpoint { .. } | SeqOp::Grow { .. } => {}
            }
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        let slots: Vec<SlotId> = self.slots.keys().copied().collect();
        slots.into_iter().for_each(|slot| self.forget(slot));
    }

    /// Nobody wants a slot's masks any more.
    fn forget(&mut self, slot: SlotId) {
        if let Some(answer) = self.slots.remove(&slot) {
            answer.gone.store(true, Ordering::Release);
        }
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
    ) -> Result<Drawn<T>, ConstraintError> {
        let known = history.get(rule.answer_at as usize..).ok_or_else(|| {
            ConstraintError::Stuck(format!("the prompt has {} tokens only", history.len()))
        })?;
        let answer = self.answer(slot, rule);
        let Some(running) = self.made(&answer, known) else { return Ok(Drawn::NotYet) };
        let drawn = draw(running.mask()?);
        drop(running);
        if let Some(token) = token(&drawn) {
            self.prepare(&answer, Job::Drawn(known.len(), token));
        }
        Ok(Drawn::Now(drawn))
    }

    /// An answer whose mask after the tokens `known` is there, or known not to come. Where it is not, it is seen to
    /// that it will be.
    fn made<'a>(&self, answer: &'a Answer, known: &[u32]) -> Option<MutexGuard<'a, Running>> {
        loop {
            let at_rest = answer.is_at_rest();
            // A job may have it.
            if let Some(running) = answer.try_lock()
                && running.is_made_after(known)
            {
                return Some(running);
            }
            if at_rest {
                self.prepare(answer, Job::Known(known.to_vec()));
            }
            if answer.rule.later {
                return None;
            }
            // Whoever composes these ubatches is of a release that cannot ask again.
            self.turns.wait(None, || answer.is_at_rest());
        }
    }

    /// Waits until nothing is being made for one of these slots, but no longer than `within`.
    pub fn wait_for_any(&self, slots: &[SlotId], within: Duration) {
        let is_at_rest = |slot: &SlotId| self.slots.get(slot).is_none_or(|a| a.is_at_rest());
        self.turns.wait(Some(within), || slots.iter().any(is_at_rest));
    }

    /// Microseconds that were spent on a slot's masks since this was asked last.
    pub fn take_spent_us(&self, slot: SlotId) -> u64 {
        self.slots.get(&slot).map_or(0, |answer| answer.spent_us.swap(0, Ordering::AcqRel))
    }

    /// How many grammars were compiled so far.
    pub fn n_compiled(&self) -> u64 {
        LazyLock::force(&self.vocabulary).as_ref().map_or(0, Vocabulary::n_compiled)
    }

    /// The answer in a slot; a new one if the slot's constraint is another.
    fn answer(&mut self, slot: SlotId, rule: &Arc<Constraint>) -> Answer {
        let there = self.slots.get(&slot).filter(|answer| Arc::ptr_eq(&answer.rule, rule)).cloned();
        there.unwrap_or_else(|| {
            self.forget(slot);
            let new = Answer::new(rule.clone());
            self.slots.insert(slot, new.clone());
            new
        })
    }

    /// Hands over to the threads.
    fn prepare(&self, answer: &Answer, job: Job) {
        answer.jobs.fetch_add(1, Ordering::AcqRel);
        let (working, vocabulary) = (answer.clone(), self.vocabulary.clone());
        self.turns.push(answer.rule.owner, move || working.work(&vocabulary, job));
    }
}

impl Answer {
    fn new(rule: Arc<Constraint>) -> Self {
        Self(Arc::new(State {
            running: Mutex::new(Running::new(rule.clone())),
            rule,
            jobs: AtomicUsize::new(0),
            spent_us: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        }))
    }

    fn is_at_rest(&self) -> bool {
        self.jobs.load(Ordering::Acquire) == 0
    }

    /// `None` while a job has it. One that panicked has left word that it did.
    fn try_lock(&self) -> Option<MutexGuard<'_, Running>> {
        match self.running.try_lock() {
            Ok(running) => Some(running),
            Err(TryLockError::Poisoned(running)) => Some(running.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Does a job, on one of the threads.
    fn work(&self, vocabulary: &Shared, job: Job) {
        let began = WorkTime::now();
        if !self.gone.load(Ordering::Acquire) {
            let made = catch_unwind(AssertUnwindSafe(|| self.make(vocabulary, job)));
            if made.is_err() {
                let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
                running.fail(ConstraintError::Stuck("making its mask failed".to_owned()));
            }
        }
        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.spent_us.fetch_add(us, Ordering::AcqRel);
        self.jobs.fetch_sub(1, Ordering::AcqRel);
    }

    fn make(&self, vocabulary: &Shared, job: Job) {
        let vocabulary = LazyLock::force(vocabulary);
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let vocabulary = match vocabulary {
            Ok(vocabulary) => vocabulary,
            Err(error) => return running.fail(error.clone()),
        };
        match job {
            Job::First => {}
            Job::Drawn(at, token) => running.note(vocabulary, at, token),
            // What is wrong with it is told when a token is drawn.
            Job::Known(known) => drop(running.mask_after(vocabulary, &known)),
        }
        running.prepare(vocabulary);
    }
}

impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masks").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}
