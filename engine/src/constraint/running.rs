//! One answer and what may follow it.

use std::sync::Arc;

use llguidance::Matcher;

use super::{ConstraintError, Mask, Vocabulary};
use crate::batch::{Constraint, Marker};

/// What holds now.
enum Phase {
    /// Anything may follow.
    Free,
    /// A grammar.
    Held { matcher: Box<Matcher>, then_free: bool },
    /// The end, and nothing else.
    Over,
}

/// Follows one answer.
pub struct Running {
    rule: Arc<Constraint>,
    /// Tokens of the answer that `phase` has seen.
    seen: Vec<u32>,
    /// `None` before anything was asked.
    phase: Option<Phase>,
    /// End of the free text, in which a marker may have begun.
    tail: Vec<u8>,
    /// For the token after `seen`, once it is made; `None` inside: anything.
    mask: Option<Option<Mask>>,
    failed: Option<ConstraintError>,
}

impl Running {
    /// At the beginning of an answer; nothing is compiled yet.
    pub fn new(rule: Arc<Constraint>) -> Self {
        Self { rule, seen: Vec::new(), phase: None, tail: Vec::new(), mask: None, failed: None }
    }

    /// The constraint that it follows.
    pub fn rule(&self) -> &Arc<Constraint> {
        &self.rule
    }

    /// Makes the mask of the next token, if it is not there: this is what takes the time.
    pub fn prepare(&mut self, vocabulary: &Vocabulary) {
        if self.failed.is_some() || self.mask.is_some() {
            return;
        }
        match self.begun(vocabulary).and_then(|()| self.make_mask(vocabulary)) {
            Ok(mask) => self.mask = Some(mask),
            Err(error) => self.failed = Some(error),
        }
    }

    /// Takes in token number `at` of the answer, unless it has come another way.
    pub fn note(&mut self, vocabulary: &Vocabulary, at: usize, token: u32) {
        if self.failed.is_none()
            && self.seen.len() == at
            && let Err(error) = self.push(vocabulary, token)
        {
            self.failed = Some(error);
        }
    }

    /// What may follow `answer`; `None`: anything.
    ///
    /// # Errors
    /// The grammar cannot be compiled, does not allow `answer`, or takes more than may be.
    pub fn mask_after(
        &mut self,
        vocabulary: &Vocabulary,
        answer: &[u32],
    ) -> Result<Option<&Mask>, ConstraintError> {
        if !answer.starts_with(&self.seen) {
            *self = Self::new(self.rule.clone());
        }
        for (at, token) in answer.iter().enumerate().skip(self.seen.len()) {
            self.note(vocabulary, at, *token);
        }
        self.prepare(vocabulary);
        self.mask()
    }

    /// Whether what may follow `answer` is there to be asked for, or why nothing may.
    pub fn is_made_after(&self, answer: &[u32]) -> bool {
        match self.failed {
            Some(_) => answer.starts_with(&self.seen),
            None => self.mask.is_some() && self.seen == answer,
        }
    }

    /// What may follow now; `None`: anything, or it is not made yet.
    ///
    /// # Errors
    /// As [`Running::mask_after`].
    pub fn mask(&self) -> Result<Option<&Mask>, ConstraintError> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(self.mask.as_ref().and_then(Option::as_ref)),
        }
    }

    /// It has no masks, whatever its tokens are.
    pub fn fail(&mut self, error: ConstraintError) {
        self.seen.clear();
        self.failed = Some(error);
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
                }
                return Ok(());
            }
            Some(Phase::Free) => {}
            Some(Phase::Over) | None => return Ok(()),
        }
        self.free_text(vocabulary, token)
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
