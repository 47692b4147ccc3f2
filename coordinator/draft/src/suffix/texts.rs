//! The texts that a stream's drafts come from, and the tokens behind a place in them.

use super::cursor::{Cursor, Place};
use super::expected::Expected;
use super::owner::{Answer, Owner};
use crate::Source;

/// The texts of one stream.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    own: &'a [u32],
    expected: &'a [u32],
    answers: &'a [Answer],
}

impl<'a> Texts<'a> {
    /// The texts of a stream whose sure tokens are `own`.
    pub fn new(own: &'a [u32], expected: &'a Expected, owner: &'a Owner) -> Self {
        Self { own, expected: expected.tokens(), answers: owner.answers() }
    }

    /// The token behind a place. The stream's own text continues in `beyond`, the tokens that are drafted behind it.
    pub fn behind(&self, source: Source, beyond: &[u32], place: Place) -> Option<u32> {
        let next = place.next as usize;
        let token = match source {
            Source::Own => self.own.get(next).or_else(|| beyond.get(next - self.own.len())),
            Source::Expected => self.expected.get(next),
            Source::Recent => self.answers[place.text as usize].tokens().get(next),
            Source::Forced | Source::Grammar | Source::Model => None,
        };
        token.copied()
    }

    /// Goes along the tokens `along`, which come behind the sure ones. Says whether any place leads along all of them and
    /// further; if not, the cursor is void.
    pub fn follow(&self, source: Source, along: &[u32], cursor: &mut Cursor) -> bool {
        let behind = |place| self.behind(source, along, place);
        along.iter().all(|token| cursor.follow(*token, behind))
    }
}
