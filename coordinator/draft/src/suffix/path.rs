//! The tokens in flight behind a stream's sure tokens, and the drafts behind these.
//!
//! Drafts that follow each other are made along the same places, so that they are the same as one long draft, and so that
//! the next one costs no search.

use super::calibration::Calibration;
use super::cursor::Cursor;
use super::texts::Texts;
use crate::{Draft, Source};

/// Most tokens that can be in flight, those of the next draft among them. Drafts end there.
pub const MAX_AHEAD: usize = 512;

/// How a token was drafted.
#[derive(Clone, Copy, Debug)]
pub struct Guess {
    pub source: Source,
    pub matched: u32,
    /// The token's share of the places; 0 for a token that another drafter drafted.
    pub share: f32,
}

/// The tokens at a path's end that come from the same places.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Tokens of the path before it.
    from: usize,
    /// The places before it.
    start: Cursor,
    /// The places behind it; `None` where their texts end.
    tip: Option<Cursor>,
}

/// The tokens behind the sure ones, as far as they are known here.
#[derive(Debug)]
pub struct Path {
    tokens: Vec<u32>,
    guesses: Vec<Guess>,
    /// Where the stretch comes from.
    source: Source,
    stretch: Option<Stretch>,
}

impl Path {
    /// Bytes of [`Self::nbytes`], always.
    pub const BYTES: usize = MAX_AHEAD * (size_of::<u32>() + size_of::<Guess>());

    /// An empty path.
    pub fn new() -> Self {
        Self {
            tokens: Vec::with_capacity(MAX_AHEAD),
            guesses: Vec::with_capacity(MAX_AHEAD),
            source: Source::Own,
            stretch: None,
        }
    }

    /// Bytes of memory in use.
    pub fn nbytes(&self) -> usize {
        let guesses = self.guesses.capacity() * size_of::<Guess>();
        self.tokens.capacity() * size_of::<u32>() + guesses
    }

    /// How the first token was drafted, if it was drafted here.
    pub fn first(&self) -> Option<Guess> {
        self.guesses.first().copied().filter(|guess| guess.share > 0.0)
    }

    /// A token is sure: it is the path's first, or the path is refuted. `texts` do not have it yet.
    pub fn push(&mut self, token: u32, texts: Texts<'_>) {
        if self.tokens.first() != Some(&token) {
            return self.clear();
        }
        self.tokens.remove(0);
        self.guesses.remove(0);
        if let Some(stretch) = &mut self.stretch {
            match stretch.from.checked_sub(1) {
                Some(from) => stretch.from = from,
                None if texts.follow(self.source, &[token], &mut stretch.start) => {}
                None => self.stretch = None,
            }
        }
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.guesses.clear();
        self.stretch = None;
    }

    /// The numbers of answers are void.
    pub fn lose_answers(&mut self) {
        if self.source == Source::Recent {
            self.stretch = None;
        }
    }

    /// Sets the path to `ahead`, and keeps the guesses of the part that is unchanged. Returns the places along which
    /// it goes on, if the tokens in flight end in its stretch and their texts do not end there.
    pub fn lead_to(&mut self, ahead: &[u32], texts: Texts<'_>) -> Option<(Source, Cursor)> {
        if !self.tokens.starts_with(ahead) {
            self.clear();
            let unknown = Guess { source: Source::Own, matched: 0, share: 0.0 };
            self.tokens.extend_from_slice(ahead);
            self.guesses.resize(ahead.len(), unknown);
        }
        // Where nothing is in flight, all texts are asked anew.
        let stretch =
            self.stretch.take().filter(|stretch| stretch.from <= ahead.len() && !ahead.is_empty());
        let found = stretch.and_then(|stretch| {
            if self.tokens.len() == ahead.len() {
                return Some((stretch, stretch.tip?));
            }
            // `ahead` as a whole is behind the sure tokens, of which the stretch follows a part.
            let mut cursor = stretch.start;
            let behind = |place| texts.behind(self.source, ahead, place);
            let mut along = ahead[stretch.from..].iter();
            along.all(|token| cursor.follow(*token, behind)).then_some((stretch, cursor))
        });
        self.tokens.truncate(ahead.len());
        self.guesses.truncate(ahead.len());
        let (stretch, cursor) = found?;
        self.stretch = Some(stretch);
        Some((self.source, cursor))
    }

    /// Drafts the likeliest tokens behind the path, which becomes longer by them. `cursor` has what [`Self::lead_to`]
    /// returned, or else other places behind the path.
    pub fn along(
        &mut self,
        source: Source,
        cursor: Cursor,
        most: usize,
        seen: &Calibration,
        texts: Texts<'_>,
    ) -> Draft {
        let from = self.tokens.len();
        let mut odds = Vec::with_capacity(most);
        let mut tip = Some(cursor);
        while let Some(cursor) = tip.as_mut().filter(|_| odds.len() < most) {
            let likely = cursor.likely(|place| texts.behind(source, &self.tokens, place));
            let Some((token, share)) = likely else { break };
            odds.push(seen.odds(source, cursor.matched, share));
            self.guesses.push(Guess { source, matched: cursor.matched as u32, share });
            self.tokens.push(token);
            if !cursor.follow(token, |place| texts.behind(source, &self.tokens, place)) {
                tip = None;
            }
        }
        let stretch = self.stretch.get_or_insert(Stretch { from, start: cursor, tip });
        (stretch.tip, self.source) = (tip, source);
        let (tokens, matched) = (self.tokens[from..].to_vec(), cursor.matched);
        Draft { tokens, odds, source, matched, is_proven: false }
    }
}
