//! The follower of one answer through its grammars.

use std::collections::VecDeque;
use std::sync::Arc;

use llguidance::Matcher;

use super::vocabulary::Only;
use super::{ConstraintError, Mask, Vocabulary};
use crate::batch::{Constraint, Marker};

/// State of an answer with regard to its grammars.
enum Phase {
    /// Free text: anything may follow.
    Free,
    /// A grammar that has begun.
    Held { matcher: Box<Matcher>, then_free: bool },
    /// The end, and nothing else.
    Over,
}

/// Tokens that can be taken back without following the answer from its beginning again.
const MAX_UNDO: usize = 64;

/// Data to take one token back. All that are kept are of one phase. All that are kept are of one phase.
enum Undo {
    /// The grammar's own way back.
    Held,
    /// The end of the free text before it.
    Free(Vec<u8>),
}

/// A follower of one answer through its grammars.
pub struct Running {
    rule: Arc<Constraint>,
    /// Tokens of the answer that `phase` has seen; the last may be drafts.
    seen: Vec<u32>,
    /// `None` before anything was asked.
    phase: Option<Phase>,
    /// End of the free text, in which a marker may have begun.
    tail: Vec<u8>,
    /// Data to take back the last tokens of `seen`.
    undo: VecDeque<Undo>,
    /// For the token after `seen`, once it is made; `None` inside: anything.
    mask: Option<Option<Arc<Mask>>>,
    /// The token that must come then, once the mask is made, where there is no choice.
    only: Option<Only>,
    failed: Option<ConstraintError>,
}

impl Running {
    /// A follower at the beginning of an answer. Nothing is compiled yet.
    pub fn new(rule: Arc<Constraint>) -> Self {
        Self {
            rule,
            seen: Vec::new(),
            phase: None,
            tail: Vec::new(),
            undo: VecDeque::new(),
            mask: None,
            only: None,
            failed: None,
        }
    }

    /// The tokens of the answer that it has followed.
    pub fn seen(&self) -> &[u32] {
        &self.seen
    }

    /// Makes the mask of the next token, if it is not there: this is what takes the time.
    pub fn prepare(&mut self, vocabulary: &Vocabulary) {
        if self.failed.is_some() || self.mask.is_some() {
            return;
        }
        match self.begun(vocabulary).and_then(|()| self.make_mask(vocabulary)) {
            Ok(mask) => {
                self.only = mask.as_ref().and_then(|mask| vocabulary.only(mask));
                self.mask = Some(mask.map(Arc::new));
            }
            Err(error) => self.failed = Some(error),
        }
    }

    /// Takes in token number `at` of the answer, unless it has come another way. Drafts that it is not are taken back.
    pub fn note(&mut self, vocabulary: &Vocabulary, at: usize, token: u32) {
        if self.seen.get(at).is_some_and(|seen| *seen != token) {
            self.take_back(vocabulary, at);
        }
        if self.failed.is_none()
            && self.seen.len() == at
            && let Err(error) = self.push(vocabulary, token)
        {
            self.failed = Some(error);
        }
    }

    /// Takes in a token that may come next, and that its mask allows. Whether it did: not where the phase would end, which
    /// has no way back.
    pub fn draft(&mut self, vocabulary: &Vocabulary, token: u32) -> bool {
        let opens = self.seen.is_empty() && self.rule.unless.contains(&token);
        if opens || self.failed.is_some() || self.begun(vocabulary).is_err() {
            return false;
        }
        let undo = match &mut self.phase {
            Some(Phase::Held { matcher, .. }) => {
                let goes_on = matcher.consume_token(token).is_ok() && !matcher.is_stopped();
                if !goes_on {
                    if matcher.rollback(1).is_err() {
                        self.anew(vocabulary, self.seen.len());
                    }
                    return false;
                }
                Undo::Held
            }
            Some(Phase::Free) => {
                let before = self.tail.clone();
                let goes_on = self.free_text(vocabulary, token).is_ok()
                    && matches!(self.phase, Some(Phase::Free));
                if !goes_on {
                    (self.phase, self.tail) = (Some(Phase::Free), before);
                    return false;
                }
                Undo::Free(before)
            }
            Some(Phase::Over) | None => return false,
        };
        self.seen.push(token);
        self.mask = None;
        self.can_undo(undo);
        true
    }

    /// Follows the first `len` tokens of those that were seen, and no more.
    fn take_back(&mut self, vocabulary: &Vocabulary, len: usize) {
        let n = self.seen.len() - len;
        let at = self.undo.len().checked_sub(n).filter(|_| self.failed.is_none());
        let is_done = match (&mut self.phase, at) {
            (Some(Phase::Held { matcher, .. }), Some(_)) => matcher.rollback(n).is_ok(),
            (Some(Phase::Free), Some(at)) => match self.undo.get_mut(at) {
                Some(Undo::Free(before)) => {
                    self.tail = std::mem::take(before);
                    true
                }
                _ => false,
            },
            _ => false,
        };
        if !is_done {
            return self.anew(vocabulary, len);
        }
        self.undo.truncate(self.undo.len() - n);
        self.seen.truncate(len);
        self.mask = None;
    }

    /// Follows the first `len` tokens of those that were seen, from the beginning.
    fn anew(&mut self, vocabulary: &Vocabulary, len: usize) {
        let mut seen = std::mem::take(&mut self.seen);
        seen.truncate(len);
        *self = Self::new(self.rule.clone());
        for (at, token) in seen.into_iter().enumerate() {
            self.note(vocabulary, at, token);
        }
    }

    fn can_undo(&mut self, undo: Undo) {
        self.undo.push_back(undo);
        if self.undo.len() > MAX_UNDO {
            self.undo.pop_front();
        }
    }

    /// The mask of the token behind `answer`; `None`: any token may follow.
    ///
    /// # Errors
    /// The grammar cannot be compiled, does not allow `answer`, or takes more than may be.
    pub fn mask_after(
        &mut self,
        vocabulary: &Vocabulary,
        answer: &[u32],
    ) -> Result<Option<&Mask>, ConstraintError> {
        for (at, token) in answer.iter().enumerate() {
            self.note(vocabulary, at, *token);
        }
        if self.seen.len() > answer.len() {
            self.take_back(vocabulary, answer.len());
        }
        self.prepare(vocabulary);
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(self.mask.as_ref().and_then(Option::as_deref)),
        }
    }

    /// The mask behind [`Running::seen`] (`None` inside: any token), or the reason why no token may follow. `None`: it
    /// is not made yet.
    pub fn made(&self) -> Option<Result<Option<Arc<Mask>>, ConstraintError>> {
        match &self.failed {
            Some(error) => Some(Err(error.clone())),
            None => self.mask.clone().map(Ok),
        }
    }

    /// The token that must follow [`Running::seen`], where its mask is made and leaves no choice.
    pub(super) fn only(&self) -> Option<Only> {
        self.only.filter(|_| self.failed.is_none() && self.mask.is_some())
    }

    fn begun(&mut self, vocabulary: &Vocabulary) -> Result<(), ConstraintError> {
        if self.phase.is_none() {
            self.phase = Some(match self.rule.first {
                None => Phase::Free,
                Some(grammar) => self.held(vocabulary, grammar)?,
            });
        }
        Ok(())
    }

    fn held(&self, vocabulary: &Vocabulary, grammar: u32) -> Result<Phase, ConstraintError> {
        let grammar = self.rule.grammars.get(grammar as usize).ok_or_else(|| {
            ConstraintError::Grammar(format!("there is no grammar number {grammar}"))
        })?;
        let matcher = Box::new(vocabulary.matcher(self.rule.owner, &grammar.text)?);
        Ok(Phase::Held { matcher, then_free: grammar.then_free })
    }

    fn push(&mut self, vocabulary: &Vocabulary, token: u32) -> Result<(), ConstraintError> {
        self.begun(vocabulary)?;
        self.mask = None;
        let opens = self.seen.is_empty() && self.rule.unless.contains(&token);
        self.seen.push(token);
        match &mut self.phase {
            Some(Phase::Held { .. }) if opens => self.phase = Some(Phase::Free),
            Some(Phase::Held { matcher, then_free }) => {
                matcher.consume_token(token).map_err(stuck)?;
                if matcher.is_stopped() {
                    self.phase = Some(if *then_free { Phase::Free } else { Phase::Over });
                    self.undo.clear();
                } else {
                    self.can_undo(Undo::Held);
                }
                return Ok(());
            }
            Some(Phase::Free) => {}
            Some(Phase::Over) | None => return Ok(()),
        }
        let before = self.tail.clone();
        self.free_text(vocabulary, token)?;
        if opens || !matches!(self.phase, Some(Phase::Free)) {
            self.undo.clear();
        } else {
            self.can_undo(Undo::Free(before));
        }
        Ok(())
    }

    /// Looks for a marker in free text. One counts when nothing but white space stands behind it in its last
    /// token: that belongs to the template's own way of writing.
    fn free_text(&mut self, vocabulary: &Vocabulary, token: u32) -> Result<(), ConstraintError> {
        let Some(longest) = self.rule.markers.iter().map(|m| m.text.len()).max() else {
            return Ok(());
        };
        self.tail.extend_from_slice(vocabulary.text(token));
        let text = self.tail.trim_ascii_end();
        let ends_here = |m: &&Marker| text.ends_with(m.text.trim_end().as_bytes());
        if let Some(marker) = self.rule.markers.iter().find(ends_here) {
            self.phase = Some(self.held(vocabulary, marker.grammar)?);
            self.tail.clear();
            return Ok(());
        }
        let over = self.tail.len().saturating_sub(longest);
        self.tail.drain(..over);
        Ok(())
    }

    fn make_mask(&mut self, vocabulary: &Vocabulary) -> Result<Option<Mask>, ConstraintError> {
        let mask = match &mut self.phase {
            Some(Phase::Held { matcher, .. }) => {
                Mask::new(matcher.compute_mask_or_eos().map_err(stuck)?)
            }
            Some(Phase::Over) => vocabulary.end(),
            Some(Phase::Free) | None => return Ok(None),
        };
        let unless = self.rule.unless.iter().filter(|_| self.seen.is_empty());
        let mask = unless.fold(mask, |mask, token| mask.with(*token));
        if mask.is_empty() {
            return Err(ConstraintError::Stuck("no token of the vocabulary fits it".to_owned()));
        }
        Ok(Some(mask))
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("seen", &self.seen.len()).finish_non_exhaustive()
    }
}

fn stuck(error: impl std::fmt::Display) -> ConstraintError {
    ConstraintError::Stuck(error.to_string())
}
