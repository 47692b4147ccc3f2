//! A stream: its text with its chains, and where drafts for it come from.

use super::calibration::Calibration;
use super::cursor::{Context, Cursor, Part, Place};
use super::expected::Expected;
use super::filter::WIDTH;
use super::index::Index;
use super::owner::{Answer, Owner};
use crate::{Draft, OwnerId, Source};

/// Most tokens that can be in flight, those of the next draft among them. Drafts end there.
pub const MAX_AHEAD: usize = 512;
/// Tokens that are indexed at once when a stream begins: the newest.
const FIRST_STEP: usize = 2048;
/// Tokens that are indexed beside each other call, until all are.
const STEP: usize = 256;
/// Where texts of the same odds are drafted from, the first first.
const SOURCES: [Source; 3] = [Source::Expected, Source::Own, Source::Recent];

/// A token that was drafted.
#[derive(Clone, Copy, Debug)]
struct Guess {
    source: Source,
    matched: u32,
    /// Its share of the places; 0 for a token that another drafter drafted.
    share: f32,
}

/// What is in flight, as far as it is known here, and what was drafted behind it.
#[derive(Debug)]
struct Path {
    tokens: Vec<u32>,
    guesses: Vec<Guess>,
    /// Where its last stretch comes from.
    source: Source,
    stretch: Option<Stretch>,
}

/// The tokens at a path's end that come from the same places.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Tokens of the path before it.
    from: usize,
    /// The places before it, and behind it.
    start: Cursor,
    /// `None` where the text ended.
    tip: Option<Cursor>,
}

/// A stream.
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
}

/// Tokens that a text of `n` has room for.
fn room(n: usize) -> usize {
    n + (n / 8).max(64)
}

impl Stream {
    /// Bytes of [`Self::new`], beside its entry among the streams.
    pub fn bytes_for(n_tokens: usize, n_expected: usize) -> usize {
        let tokens = (room(n_tokens) + n_expected) * size_of::<u32>();
        let path = MAX_AHEAD * (size_of::<u32>() + size_of::<Guess>());
        tokens + path + Index::bytes_backwards(n_tokens)
    }

    /// A stream of these tokens, the first `n_prompt` of which are its prompt.
    pub fn new(
        (id, owner): (OwnerId, &Owner),
        tokens: &[u32],
        n_prompt: usize,
        expected: &[u32],
    ) -> Self {
        let mut own = Vec::with_capacity(room(tokens.len()));
        own.extend_from_slice(tokens);
        let path = Path {
            tokens: Vec::with_capacity(MAX_AHEAD),
            guesses: Vec::with_capacity(MAX_AHEAD),
            source: Source::Own,
            stretch: None,
        };
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
            path,
            seen: owner.seen.for_a_stream(),
        };
        stream.prepare(FIRST_STEP);
        tokens[stream.n_prompt..].iter().for_each(|token| stream.expected.push(*token));
        stream
    }

    /// Bytes held, beside its entry among the streams.
    pub fn nbytes(&self) -> usize {
        let path = self.path.tokens.capacity() * size_of::<u32>()
            + self.path.guesses.capacity() * size_of::<Guess>();
        let tokens = self.tokens.capacity() * size_of::<u32>() + self.expected.nbytes();
        tokens + path + self.early.nbytes() + self.late.nbytes()
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
        self.n_left = self.n_left.min(end);
        self.n_left.saturating_sub(1)
    }

    /// A token is sure.
    pub fn push(&mut self, token: u32, owner: &mut Owner) {
        self.prepare(STEP);
        self.renew(owner);
        if let Some(guess) = self.path.guesses.first().filter(|guess| guess.share > 0.0) {
            for seen in [&mut self.seen, &mut owner.seen] {
                seen.drawn(guess.source, guess.matched as usize, guess.share);
            }
        }
        let texts = texts(&self.tokens, &self.expected, owner);
        let said = [token];
        let behind = |source| move |place| texts.behind(source, &said, place);
        follow(&mut self.own, token, behind(Source::Own));
        follow(&mut self.recent, token, behind(Source::Recent));
        self.path.push(token, behind(self.path.source));
        self.expected.push(token);
        if self.tokens.len() == self.tokens.capacity() {
            self.tokens.reserve_exact(room(self.tokens.len()) - self.tokens.len());
        }
        self.tokens.push(token);
        self.late.add_newest(&self.tokens, self.base);
    }

    /// A drafted token was right, or not.
    pub fn judged(&mut self, source: Source, matched: usize, right: bool) {
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
        // What goes on along one text is drafted from that text, wherever it is cut.
        let goes_on = !ahead.is_empty() && self.path.tokens.starts_with(ahead);
        let begun = goes_on.then(|| self.on_path(ahead, owner)).flatten();
        self.path.lead_to(ahead);
        if begun.is_none() {
            self.path.stretch = None;
        }
        let begun = begun.or_else(|| self.best(ahead, owner));
        let Some((source, cursor)) = begun else { return Draft::default() };
        let draft = self.along(source, cursor, most, owner);
        if source == Source::Recent && !draft.tokens.is_empty() {
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
            if self.path.source == Source::Recent {
                self.path.stretch = None;
            }
        }
    }

    /// Where the text goes on behind `ahead`, with which the path begins, if its last stretch reaches there.
    fn on_path(&self, ahead: &[u32], owner: &Owner) -> Option<(Source, Cursor)> {
        let (path, source) = (&self.path, self.path.source);
        let stretch = path.stretch.as_ref()?;
        let along = ahead.get(stretch.from..)?;
        let texts = texts(&self.tokens, &self.expected, owner);
        if ahead.len() == path.tokens.len() {
            return Some((source, stretch.tip?));
        }
        let mut cursor = stretch.start;
        let behind = |place| texts.behind(source, ahead, place);
        along.iter().all(|token| cursor.follow(*token, behind)).then_some((source, cursor))
    }

    /// The text whose next token has the best odds.
    fn best(&mut self, ahead: &[u32], owner: &Owner) -> Option<(Source, Cursor)> {
        let mut best = None;
        let mut best_odds = 0.0;
        for source in SOURCES {
            let Some(cursor) = self.cursor(source, ahead, owner) else { continue };
            let texts = texts(&self.tokens, &self.expected, owner);
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
        let mut cursor = self.sure_cursor(source, owner);
        let texts = texts(&self.tokens, &self.expected, owner);
        let behind = |place| texts.behind(source, ahead, place);
        if let Some(cursor) = &mut cursor
            && ahead.iter().all(|token| cursor.follow(*token, behind))
        {
            return Some(*cursor);
        }
        if ahead.is_empty() { None } else { self.search(source, ahead, owner) }
    }

    /// The places behind the sure tokens.
    fn sure_cursor(&mut self, source: Source, owner: &Owner) -> Option<Cursor> {
        let known = match source {
            Source::Own => self.own,
            Source::Recent => self.recent,
            Source::Expected => self.expected.at(),
            Source::Forced => None,
        };
        let found = known.or_else(|| self.search(source, &[], owner));
        match source {
            Source::Own => self.own = found,
            Source::Recent => self.recent = found,
            Source::Expected => self.expected.go_to(found),
            Source::Forced => {}
        }
        found
    }

    fn search(&self, source: Source, ahead: &[u32], owner: &Owner) -> Option<Cursor> {
        let context = Context::new(&self.tokens, ahead);
        match source {
            Source::Own => Cursor::search(&context, 1, self.parts()),
            Source::Recent => Cursor::search(&context, WIDTH, owner.parts(&context)),
            Source::Expected => self.expected.found(&context),
            Source::Forced => None,
        }
    }

    /// The stream's own text for a search, the newest first.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> + Clone {
        let part = |index, base| Part { text: 0, tokens: &self.tokens, index, base };
        [part(&self.late, self.base), part(&self.early, 0)].into_iter()
    }

    /// Goes along the likeliest tokens from behind the path, which it makes longer.
    fn along(&mut self, source: Source, cursor: Cursor, most: usize, owner: &Owner) -> Draft {
        let texts = texts(&self.tokens, &self.expected, owner);
        let path = &mut self.path;
        let from = path.tokens.len();
        let (start, matched) = (cursor, cursor.matched);
        let mut odds = Vec::with_capacity(most);
        let mut tip = Some(cursor);
        while let Some(cursor) = tip.as_mut().filter(|_| odds.len() < most) {
            let likely = cursor.likely(|place| texts.behind(source, &path.tokens, place));
            let Some((token, share)) = likely else { break };
            odds.push(self.seen.odds(source, cursor.matched, share));
            path.guesses.push(Guess { source, matched: cursor.matched as u32, share });
            path.tokens.push(token);
            if !cursor.follow(token, |place| texts.behind(source, &path.tokens, place)) {
                tip = None;
            }
        }
        // What goes on along the same places is one stretch still.
        match &mut path.stretch {
            Some(stretch) => stretch.tip = tip,
            None => path.stretch = Some(Stretch { from, start, tip }),
        }
        path.source = source;
        Draft { tokens: path.tokens[from..].to_vec(), odds, source, matched }
    }
}

impl Path {
    /// A token is sure: it is the path's first, or the path is refuted.
    fn push(&mut self, token: u32, behind: impl Fn(Place) -> Option<u32>) {
        if self.tokens.first() != Some(&token) {
            return self.clear();
        }
        self.tokens.remove(0);
        self.guesses.remove(0);
        if let Some(stretch) = &mut self.stretch {
            match stretch.from.checked_sub(1) {
                Some(from) => stretch.from = from,
                None if stretch.start.follow(token, behind) => {}
                None => self.stretch = None,
            }
        }
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.guesses.clear();
        self.stretch = None;
    }

    /// Makes it `ahead`, of which it keeps what it knows.
    fn lead_to(&mut self, ahead: &[u32]) {
        if !self.tokens.starts_with(ahead) {
            self.clear();
            let unknown = Guess { source: Source::Own, matched: 0, share: 0.0 };
            self.tokens.extend_from_slice(ahead);
            self.guesses.resize(ahead.len(), unknown);
        }
        if self.tokens.len() > ahead.len() {
            self.tokens.truncate(ahead.len());
            self.guesses.truncate(ahead.len());
        }
    }
}

/// A token was said: follows it, or loses the places.
fn follow(cursor: &mut Option<Cursor>, token: u32, behind: impl Fn(Place) -> Option<u32>) {
    if cursor.as_mut().is_some_and(|cursor| !cursor.follow(token, behind)) {
        *cursor = None;
    }
}

/// The texts that a stream's drafts come from.
#[derive(Clone, Copy, Debug)]
struct Texts<'a> {
    own: &'a [u32],
    expected: &'a [u32],
    answers: &'a [Answer],
}

fn texts<'a>(own: &'a [u32], expected: &'a Expected, owner: &'a Owner) -> Texts<'a> {
    Texts { own, expected: expected.tokens(), answers: owner.answers() }
}

impl Texts<'_> {
    /// The token behind a place. The stream's own text goes on in `beyond`, what is drafted behind it.
    fn behind(&self, source: Source, beyond: &[u32], place: Place) -> Option<u32> {
        let next = place.next as usize;
        let token = match source {
            Source::Own => self.own.get(next).or_else(|| beyond.get(next - self.own.len())),
            Source::Expected => self.expected.get(next),
            Source::Recent => self.answers[place.text as usize].tokens().get(next),
            Source::Forced => None,
        };
        token.copied()
    }
}
