//! The masks of a last stage's slots, made on threads of their own.
//!
//! The stage's thread never waits for one. Where a mask is not there when its token is to be drawn, the draw is put off
//! ([`Drawn::NotYet`]), and the rows beside it go on. A mask depends neither on the time nor on the other answers that
//! have masks.
//!
//! Where a sequence runs ahead of what was drawn, masks are made along its drafts while they are computed
//! ([`Masks::draft`]). A drawn token that is another one takes them back.
//!
//! Where a grammar leaves no choice, the next tokens are found before anybody asks for them. They are told with the
//! token before them ([`Masks::forced`]): a draft that costs nothing to find.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::turns::Turns;
use super::vocabulary::Only;
use super::work_time::WorkTime;
use super::{ConstraintError, Mask, Running, Vocabulary};
use crate::batch::{Constraint, MAX_FORCED, SeqOp, SlotId};

/// Makes the vocabulary when the first constraint needs it.
pub type VocabularySource = Box<dyn FnOnce() -> Result<Vocabulary, ConstraintError> + Send>;

type Shared = Arc<LazyLock<Result<Vocabulary, ConstraintError>, VocabularySource>>;

/// Result of a draw under a constraint.
#[derive(Debug, PartialEq, Eq)]
pub enum Drawn<T> {
    /// The drawn token.
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
    /// Held by the job that is done.
    running: Mutex<Running>,
    /// Held for moments only, since every draw looks here.
    made: Mutex<Made>,
    /// Jobs that are not done.
    jobs: AtomicUsize,
    /// Microseconds of finished jobs that were not reported yet.
    spent_us: AtomicU64,
    /// Set when the sequence has ended: its masks are not needed any more.
    gone: AtomicBool,
}

impl std::ops::Deref for Answer {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

/// Masks that are made of an answer ahead of what is drawn: more drafts are not followed.
const MAX_AHEAD: usize = 64;

/// Answers up to which each is followed on where there is no choice. More streams fill a line, and have no use for drafts: the
/// masks that these would need are made in time.
const MOST_FOLLOWED: usize = 2;

/// The mask of the next token (`None`: any token), or the reason why no token may follow.
type May = Result<Option<Arc<Mask>>, ConstraintError>;

/// The masks that are made of an answer.
#[derive(Debug, Default)]
struct Made {
    /// The answer; the last tokens may be drafts.
    tokens: Vec<u32>,
    /// For each length of a prefix of `tokens`, the mask behind it, and the only possible token where there is one.
    may: BTreeMap<usize, (May, Option<Only>)>,
    /// Error that makes all masks impossible, whatever the tokens are.
    failed: Option<ConstraintError>,
    /// Whether the last token was only a part of the text that had to follow.
    comes_in_parts: bool,
}

impl Made {
    /// The mask behind the answer `known`; `None`: it is not made yet.
    fn after(&self, known: &[u32]) -> Option<May> {
        if let Some(error) = &self.failed {
            return Some(Err(error.clone()));
        }
        if self.tokens.starts_with(known) {
            return self.may.get(&known.len()).map(|(may, _)| may.clone());
        }
        // Nothing may follow what something may not follow.
        let (last, _) = self.may.get(&self.tokens.len()).filter(|(may, _)| may.is_err())?;
        known.starts_with(&self.tokens).then(|| last.clone())
    }

    /// The tokens that must follow `known` and then `token`, as far as is known.
    fn forced(&self, known: &[u32], token: u32) -> Vec<u32> {
        let mut forced = Vec::new();
        if !self.is_made_behind(known, token) {
            return forced;
        }
        for at in known.len() + 1..=known.len() + MAX_FORCED {
            let only = self.may.get(&at).and_then(|(_, only)| *only);
            let Some(only) = only.filter(|only| self.expects(*only)) else { break };
            forced.push(only.token);
            if self.tokens.get(at) != Some(&only.token) {
                break;
            }
        }
        forced
    }

    /// Token number `at` was drawn.
    fn drawn(&mut self, at: usize, token: u32) {
        if let Some((_, Some(only))) = self.may.get(&at)
            && !only.is_sure
        {
            self.comes_in_parts = only.token != token;
        }
    }

    /// Whether a token that must follow is likely to come at once.
    fn expects(&self, only: Only) -> bool {
        only.is_sure || !self.comes_in_parts
    }

    /// Whether it is known what may follow `known` and then `token`.
    fn is_made_behind(&self, known: &[u32], token: u32) -> bool {
        self.tokens.get(known.len()) == Some(&token) && self.may.contains_key(&(known.len() + 1))
    }

    /// Takes over what was made.
    fn learn(&mut self, running: &Running) {
        let seen = running.seen();
        let same = self.tokens.iter().zip(seen).take_while(|(a, b)| a == b).count();
        drop(self.may.split_off(&(same + 1)));
        self.tokens.truncate(same);
        self.tokens.extend_from_slice(&seen[same..]);
        if let Some(may) = running.made() {
            self.may.insert(seen.len(), (may, running.only()));
        }
    }

    /// Forgets the masks before the first `n` tokens, which are not needed any more.
    fn forget_before(&mut self, n: usize) {
        self.may = self.may.split_off(&n);
    }
}

/// A mask to prepare.
enum Job {
    /// The first mask of an answer.
    First,
    /// The token that has just been drawn, and its place in the answer.
    Drawn(usize, u32),
    /// All tokens of an answer that had begun elsewhere.
    Known(Vec<u32>),
    /// Tokens that may come from that place in the answer on.
    Drafts(usize, Vec<u32>),
}

/// The answers that are held to a constraint, by slot.
pub struct Masks {
    vocabulary: Shared,
    slots: BTreeMap<SlotId, Answer>,
    turns: Turns,
}

impl Masks {
    /// Masks of no answer yet. `source` reads the vocabulary when it is first needed.
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
                SeqOp::Truncate { .. } | SeqOp::Adapt { .. } => {}
                SeqOp::Draw { .. } | SeqOp::Draft { .. } => {}
                SeqOp::Name { .. } | SeqOp::Checkpoint { .. } | SeqOp::Grow { .. } => {}
            }
        }
    }

    /// Forgets all answers and their masks.
    pub fn clear(&mut self) {
        let slots: Vec<SlotId> = self.slots.keys().copied().collect();
        slots.into_iter().for_each(|slot| self.forget(slot));
    }

    /// Forgets a slot's answer and its masks.
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
        let Some(may) = self.may_follow(&answer, known) else { return Ok(Drawn::NotYet) };
        let drawn = draw(may?.as_deref());
        if let Some(token) = token(&drawn) {
            let mut made = answer.made();
            made.drawn(known.len(), token);
            made.forget_before(known.len());
            let is_made = made.is_made_behind(known, token);
            drop(made);
            if !is_made {
                self.prepare(&answer, Job::Drawn(known.len(), token));
            }
        }
        Ok(Drawn::Now(drawn))
    }

    /// The tokens that must follow the answer `history[rule.answer_at..]` of a slot and then `token`, which was drawn, as far
    /// as is known by now: at most [`MAX_FORCED`]. An answer may come in other tokens of the same text.
    pub fn forced(
        &mut self,
        slot: SlotId,
        rule: &Arc<Constraint>,
        history: &[u32],
        token: u32,
    ) -> Vec<u32> {
        let Some(known) = history.get(rule.answer_at as usize..) else { return Vec::new() };
        let answer = self.slots.get(&slot).filter(|answer| Arc::ptr_eq(&answer.rule, rule));
        answer.map_or_else(Vec::new, |answer| answer.made().forced(known, token))
    }

    /// Begins with the masks along `tokens`, which may come from position `pos` on.
    pub fn draft(&mut self, slot: SlotId, rule: &Arc<Constraint>, pos: u32, tokens: &[u32]) {
        let Some(at) = pos.checked_sub(rule.answer_at) else { return };
        let answer = self.answer(slot, rule);
        self.prepare(&answer, Job::Drafts(at as usize, tokens.to_vec()));
    }

    /// The mask behind the tokens `known`, where it is made. Where it is not, this orders it.
    fn may_follow(&self, answer: &Answer, known: &[u32]) -> Option<May> {
        loop {
            let at_rest = answer.is_at_rest();
            if let Some(may) = answer.made().after(known) {
                return Some(may);
            }
            if at_rest {
                self.prepare(answer, Job::Known(known.to_vec()));
            }
            if answer.rule.later {
                return None;
            }
            // The coordinator is of a release that cannot ask again.
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

    /// Number of grammars compiled so far.
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
        let follows = self.slots.len() <= MOST_FOLLOWED;
        self.turns.push(answer.rule.owner, move || working.work(&vocabulary, job, follows));
    }
}

impl Answer {
    fn new(rule: Arc<Constraint>) -> Self {
        Self(Arc::new(State {
            running: Mutex::new(Running::new(rule.clone())),
            made: Mutex::default(),
            rule,
            jobs: AtomicUsize::new(0),
            spent_us: AtomicU64::new(0),
            gone: AtomicBool::new(false),
        }))
    }

    fn is_at_rest(&self) -> bool {
        self.jobs.load(Ordering::Acquire) == 0
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        // Nothing panics while it is held.
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a job, on one of the threads. Then it follows the answer on, if that is to be.
    fn work(&self, vocabulary: &Shared, job: Job, follows: bool) {
        let began = WorkTime::now();
        if !self.gone.load(Ordering::Acquire) {
            let made = catch_unwind(AssertUnwindSafe(|| self.make(vocabulary, job, follows)));
            if made.is_err() {
                let error = ConstraintError::Stuck("making its mask failed".to_owned());
                self.made().failed = Some(error);
            }
        }
        let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.spent_us.fetch_add(us, Ordering::AcqRel);
        self.jobs.fetch_sub(1, Ordering::AcqRel);
    }

    fn make(&self, vocabulary: &Shared, job: Job, follows: bool) {
        let vocabulary = LazyLock::force(vocabulary);
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let vocabulary = match vocabulary {
            Ok(vocabulary) => vocabulary,
            Err(error) => return self.made().failed = Some(error.clone()),
        };
        match job {
            Job::First => {}
            Job::Drawn(at, token) => running.note(vocabulary, at, token),
            // What is wrong with it is told when a token is drawn.
            Job::Known(known) => drop(running.mask_after(vocabulary, &known)),
            Job::Drafts(at, tokens) => {
                if self.along(vocabulary, &mut running, at, &tokens) && follows {
                    self.along_forced(vocabulary, &mut running);
                }
                return;
            }
        }
        running.prepare(vocabulary);
        self.made().learn(&running);
        if follows {
            self.along_forced(vocabulary, &mut running);
        }
    }

    /// Follows the answer on, as long as there is no choice and nothing else to do for it.
    fn along_forced(&self, vocabulary: &Vocabulary, running: &mut Running) {
        for _ in 0..MAX_FORCED {
            let is_asked = self.jobs.load(Ordering::Acquire) > 1;
            if is_asked || self.gone.load(Ordering::Acquire) {
                return;
            }
            let only = running.only().filter(|only| self.made().expects(*only));
            if !only.is_some_and(|only| running.draft(vocabulary, only.token)) {
                return;
            }
            running.prepare(vocabulary);
            self.made().learn(running);
        }
    }

    /// Makes the masks along drafts, up to the first that does not fit. Whether all do.
    fn along(
        &self,
        vocabulary: &Vocabulary,
        running: &mut Running,
        at: usize,
        tokens: &[u32],
    ) -> bool {
        for (at, token) in (at..).zip(tokens) {
            if self.gone.load(Ordering::Acquire) || self.made().may.len() > MAX_AHEAD {
                return false;
            }
            match running.seen().get(at) {
                Some(seen) if seen == token => continue,
                None if running.seen().len() == at => {}
                // It has gone another way.
                Some(_) | None => return false,
            }
            running.prepare(vocabulary);
            let may_come = match running.made() {
                Some(Ok(mask)) => mask.is_none_or(|mask| mask.allows(*token)),
                Some(Err(_)) | None => false,
            };
            if !(may_come && running.draft(vocabulary, *token)) {
                return false;
            }
            running.prepare(vocabulary);
            self.made().learn(running);
        }
        true
    }
}

impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masks").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}
