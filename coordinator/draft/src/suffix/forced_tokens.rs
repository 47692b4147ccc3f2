//! Tokens that must follow a stream's sure tokens by its grammar.

use super::calibration::Calibration;
use crate::{Draft, Source};

/// Most tokens that are kept: more are not told at once.
const MAX: usize = 8;

/// Less likely drafts of a grammar are not believed: the text comes in other tokens.
const LIKELY: f32 = 0.8;

/// Tokens that must follow.
#[derive(Debug, Default)]
pub struct ForcedTokens {
    tokens: [u32; MAX],
    n: usize,
    /// How many of the tokens that were told came already.
    n_came: usize,
}

impl ForcedTokens {
    /// Notes that exactly these tokens must come next.
    pub fn tell(&mut self, tokens: &[u32]) {
        *self = Self::default();
        for (to, token) in self.tokens.iter_mut().zip(tokens) {
            *to = *token;
            self.n += 1;
        }
    }

    /// A token is sure. Returns how many came before it and whether it is the one that must follow, if there is such a one.
    pub fn push(&mut self, token: u32) -> Option<(usize, bool)> {
        let came = (self.n_came, *self.left().first()? == token);
        if came.1 {
            self.n_came += 1
        } else {
            self.n = 0
        }
        Some(came)
    }

    fn left(&self) -> &[u32] {
        self.tokens[..self.n].get(self.n_came..).unwrap_or_default()
    }

    /// Joins `found`, which follows the sure tokens and `ahead`, with at most `most` tokens that must follow: `found`
    /// continues where it agrees with them, and is replaced where it does not.
    pub fn before(&self, found: Draft, ahead: &[u32], most: usize, seen: &Calibration) -> Draft {
        let Some(rest) = self.left().strip_prefix(ahead).filter(|rest| !rest.is_empty()) else {
            return found;
        };
        let rest = &rest[..rest.len().min(most)];
        let matched = self.n_came + ahead.len();
        let odds = (matched..).take(rest.len());
        let odds: Vec<f32> = odds.map(|at| seen.odds(Source::Grammar, at, 1.0)).collect();
        if odds.first().is_none_or(|odds| *odds < LIKELY) {
            return found;
        }
        if found.tokens.len() > rest.len() && found.tokens.starts_with(rest) {
            let mut found = Draft { is_proven: true, ..found };
            let both = found.odds.iter_mut().zip(odds);
            both.for_each(|(found, odds)| *found = found.max(odds));
            return found;
        }
        let (tokens, source) = (rest.to_vec(), Source::Grammar);
        Draft { tokens, odds, source, matched, is_proven: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before(forced: &ForcedTokens, found: &[u32], ahead: &[u32], most: usize) -> Draft {
        let odds = vec![0.3; found.len()];
        let found = Draft { tokens: found.to_vec(), odds, ..Draft::default() };
        forced.before(found, ahead, most, &Calibration::default())
    }

    #[test]
    fn what_must_follow_comes_before_what_may() {
        let mut forced = ForcedTokens::default();
        forced.tell(&[5, 6, 7]);
        let draft = before(&forced, &[9, 9], &[], 16);
        assert_eq!((draft.tokens, draft.source), (vec![5, 6, 7], Source::Grammar));
        assert!(draft.is_proven && draft.odds.iter().all(|odds| *odds == 0.9));
        assert_eq!(before(&forced, &[], &[], 2).tokens, [5, 6]);
        // Behind tokens in flight, and behind tokens that arrived.
        assert_eq!(before(&forced, &[], &[5], 16).tokens, [6, 7]);
        assert_eq!(forced.push(5), Some((0, true)));
        let draft = before(&forced, &[], &[6], 16);
        assert_eq!((draft.tokens, draft.matched), (vec![7], 2));
        // A continuation of the same tokens.
        let draft = before(&forced, &[6, 7, 8], &[], 16);
        assert_eq!((draft.tokens, draft.source), (vec![6, 7, 8], Source::Own));
        assert_eq!(draft.odds, [0.9, 0.9, 0.3]);
        // It came in other tokens.
        assert_eq!(before(&forced, &[9], &[4], 16).tokens, [9]);
        assert_eq!(forced.push(4), Some((1, false)));
        assert_eq!(forced.push(4), None);
        assert_eq!(before(&forced, &[9], &[], 16).tokens, [9]);
    }

    #[test]
    fn a_grammar_whose_texts_come_in_other_tokens_is_not_believed() {
        let (mut forced, mut seen) = (ForcedTokens::default(), Calibration::default());
        forced.tell(&[5; 20]);
        assert_eq!(forced.before(Draft::default(), &[], 16, &seen).tokens.len(), MAX);
        (0..4).for_each(|_| seen.judged(Source::Grammar, 0, false));
        assert_eq!(forced.before(Draft::default(), &[], 16, &seen), Draft::default());
    }
}
