//! A stream: its text with its chains, and where drafts for it come from.

use super::calibration::Calibration;
use super::cursor::{Context, Cursor, Part};
use super::expected::Expected;
use super::filter::WIDTH;
use super::forced_tokens::ForcedTokens;
use super::index::Index;
use super::owner::{Answer, Owner};
use super::path::{MAX_AHEAD, Path};
use super::record::Record;
use super::texts::Texts;
use crate::{Draft, OwnerId, Source};

/// Tokens that are indexed at once when a stream begins: the newest.
const FIRST_STEP: usize = 2048;
/// Tokens that are indexed beside each other call, until all are.
const STEP: usize = 256;
/// Where texts of the same odds are drafted from, the first first.
const SOURCES: [Source; 3] = [Source::Expected, Source::Own, Source::Recent];

/// A running stream and its cursor.
#[derive(Debug)]
pub struct Stream {
    pub owner: OwnerId,
    tokens: Vec<u32>,
    n_prompt: usize,
    /// Places before `base`, indexed from the last to the first.
    early: Index,
    /// Places before this one are still to be indexed.
    n_left: usize,
    /// Places from `base` on.
    late: Index,
    base: usize,
    own: Option<Cursor>,
    recent: Option<Cursor>,
    /// The changes of the owner's answers that `recent` knows of.
    changes: u64,
    expected: Expected,
    path: Path,
    seen: Calibration,
    record: Record,
    pub forced_tokens: ForcedTokens,
}

/// Tokens that a text of `n` has room for.
fn room(n: usize) -> usize {
    n + (n / 8).max(64)
}

impl Stream {
    /// Bytes of [`Self::new`], beside its entry among the streams.
    pub fn bytes_for(n_tokens: usize, n_expected: usize) -> usize {
        let tokens = (room(n_tokens) + n_expected) * size_of::<u32>();
        tokens + Path::BYTES + Index::bytes_backwards(n_tokens)
    }

    /// A stream of these tokens, the first `n_prompt` of which are its prompt.
    pub fn new(
        id: OwnerId,
        owner: &Owner,
        tokens: &[u32],
        n_prompt: usize,
        expected: &[u32],
    ) -> Self {
        let mut own = Vec::with_capacity(room(tokens.len()));
        own.extend_from_slice(tokens);
        let mut stream = Self {
            owner: id,
            tokens: own,
            n_prompt: n_prompt.min(tokens.len()),
            early: Index::backwards(tokens.len()),
            n_left: tokens.len(),
            late: Index::default(),
            base: tokens.len(),
            own: None,
            recent: None,
            changes: owner.changes,
            expected: Expected::new(expected),
            path: Path::new(),
            seen: owner.seen.for_a_stream(),
            record: Record::default(),
            forced_tokens: ForcedTokens::default(),
        };
        stream.prepare(FIRST_STEP);
        tokens[stream.n_prompt..].iter().for_each(|token| stream.expected.push(*token));
        stream
    }

    /// Bytes held, beside its entry among the streams.
    pub fn nbytes(&self) -> usize {
        let tokens = self.tokens.capacity() * size_of::<u32>() + self.expected.nbytes();
        tokens + self.path.nbytes() + self.early.nbytes() + self.late.nbytes()
    }

    /// Bytes that the next [`Self::push`] takes more than are held now.
    pub fn growth(&self) -> usize {
        let n = self.tokens.len();
        let tokens = if n == self.tokens.capacity() { room(n) - n } else { 0 };
        tokens * size_of::<u32>() + self.late.growth()
    }

    /// Indexes at most `most` places more. Returns how many are left.
    pub fn prepare(&mut self, most: usize) -> usize {
        // Nothing is before the first place: it is in no chain.
        let end = self.n_left.saturating_sub(most).max(1);
        for at in (end..self.n_left).rev() {
            self.early.add_oldest(at, &self.tokens[..at]);
        }
        self.n_left = end;
        end - 1
    }

    /// A token is sure.
    pub fn push(&mut self, token: u32, owner: &mut Owner) {
        self.prepare(STEP);
        self.renew(owner);
        if let Some(guess) = self.path.first() {
            for seen in [&mut self.seen, &mut owner.seen] {
                seen.drawn(guess.source, guess.matched as usize, guess.share);
            }
        }
        let texts = Texts::new(&self.tokens, &self.expected, owner);
        follow(&mut self.own, token, Source::Own, texts);
        follow(&mut self.recent, token, Source::Recent, texts);
        self.path.push(token, texts);
        self.expected.push(token);
        // Whether it was drafted or not: else one that was wrong would be the last.
        if let Some((n_came, right)) = self.forced_tokens.push(token) {
            for seen in [&mut self.seen, &mut owner.seen] {
                seen.judged(Source::Grammar, n_came, right);
            }
        }
        if self.tokens.len() == self.tokens.capacity() {
            self.tokens.reserve_exact(room(self.tokens.len()) - self.tokens.len());
        }
        self.tokens.push(token);
        self.late.add_newest(&self.tokens, self.base);
    }

    /// A drafted token was right, or not.
    pub fn judged(&mut self, source: Source, matched: usize, right: bool) {
        self.record.judged(right);
        self.seen.judged(source, matched, right);
    }

    /// At most `most` tokens behind the sure ones and `ahead`.
    pub fn draft(&mut self, ahead: &[u32], most: usize, owner: &mut Owner) -> Draft {
        self.prepare(STEP);
        self.renew(owner);
        let most = most.min(MAX_AHEAD.saturating_sub(ahead.len()));
        if most == 0 {
            return Draft::default();
        }
        let found = self.found(ahead, most, owner);
        self.forced_tokens.before(found, ahead, most, &self.seen)
    }

    /// The same from texts.
    fn found(&mut self, ahead: &[u32], most: usize, owner: &mut Owner) -> Draft {
        // Drafts that follow one text come from that text, wherever the draft is cut.
        let texts = Texts::new(&self.tokens, &self.expected, owner);
        let begun = self.path.lead_to(ahead, texts).or_else(|| self.best(ahead, owner));
        let Some((source, cursor)) = begun else { return Draft::default() };
        let texts = Texts::new(&self.tokens, &self.expected, owner);
        let mut draft = self.path.along(source, cursor, most, &self.seen, texts);
        draft.is_proven = draft.odds.first().is_some_and(|odds| self.record.believes(*odds));
        if source == Source::Recent {
            owner.used(cursor.newest().text);
        }
        draft
    }

    /// The answer behind the prompt, where it is worth keeping.
    pub fn into_answer(mut self) -> Option<Answer> {
        // After a lost line, a part of the answer is in the other index.
        let late = std::mem::take(&mut self.late);
        let index = if self.base == self.n_prompt { late } else { Index::default() };
        Answer::new(&self.tokens, self.n_prompt, index)
    }

    /// Forgets places in answers that changed.
    fn renew(&mut self, owner: &Owner) {
        if self.changes != owner.changes {
            self.changes = owner.changes;
            self.recent = None;
            self.path.lose_answers();
        }
    }

    /// The text whose next token has the best odds.
    fn best(&mut self, ahead: &[u32], owner: &Owner) -> Option<(Source, Cursor)> {
        let mut best = None;
        let mut best_odds = 0.0;
        for source in SOURCES {
            let Some(cursor) = self.cursor(source, ahead, owner) else { continue };
            let texts = Texts::new(&self.tokens, &self.expected, owner);
            let likely = cursor.likely(|place| texts.behind(source, ahead, place));
            let Some((_, share)) = likely else { continue };
            let odds = self.seen.odds(source, cursor.matched, share);
            if odds > best_odds {
                (best, best_odds) = (Some((source, cursor)), odds);
            }
        }
        best
    }

    /// The places of a text behind the sure tokens and `ahead`: those behind the sure tokens, as far as they lead along
    /// `ahead`, or else those that match the end of both.
    fn cursor(&mut self, source: Source, ahead: &[u32], owner: &Owner) -> Option<Cursor> {
        let sure = self.sure_cursor(source, owner);
        if ahead.is_empty() {
            return sure;
        }
        let texts = Texts::new(&self.tokens, &self.expected, owner);
        let along =
            sure.and_then(|mut cursor| texts.follow(source, ahead, &mut cursor).then_some(cursor));
        along.or_else(|| self.search(source, ahead, owner))
    }

    /// The places behind the sure tokens.
    fn sure_cursor(&mut self, source: Source, owner: &Owner) -> Option<Cursor> {
        let known = match source {
            Source::Own => self.own,
            Source::Recent => self.recent,
            Source::Expected => self.expected.at(),
            Source::Forced | Source::Grammar | Source::Model => None,
        };
        let found = known.or_else(|| self.search(source, &[], owner));
        match source {
            Source::Own => self.own = found,
            Source::Recent => self.recent = found,
            Source::Expected => self.expected.go_to(found),
            Source::Forced | Source::Grammar | Source::Model => {}
        }
        found
    }

    fn search(&self, source: Source, ahead: &[u32], owner: &Owner) -> Option<Cursor> {
        let context = Context::new(&self.tokens, ahead);
        match source {
            Source::Own => Cursor::search(&context, 1, self.parts()),
            Source::Recent => Cursor::search(&context, WIDTH, owner.parts(&context)),
            Source::Expected => self.expected.found(&context),
            Source::Forced | Source::Grammar | Source::Model => None,
        }
    }

    /// The stream's own text for a search, the newest first.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> + Clone {
        let part = |index, base| Part { text: 0, tokens: &self.tokens, index, base };
        [part(&self.late, self.base), part(&self.early, 0)].into_iter()
    }
}

/// A token was said: follows it, or loses the places.
fn follow(cursor: &mut Option<Cursor>, token: u32, source: Source, texts: Texts<'_>) {
    if cursor.as_mut().is_some_and(|cursor| !texts.follow(source, &[token], cursor)) {
        *cursor = None;
    }
}
