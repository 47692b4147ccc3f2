//! Combines drafts of the model's own drafting block with those of texts.
//!
//! The block's drafts come with a drawn token, each with the probability that the block gives it. How often such
//! drafts are right is learned by that probability and by how far behind the drawn token they stand, for each stream
//! and for each owner. The drafts with more expected right tokens are chosen: the block's, or a text's. While the
//! block's are in flight, texts draft behind them.

mod seen;

use std::collections::BTreeMap;

use crate::{Draft, Drafter, OwnerId, Source, StreamId};
use seen::Seen;

/// Below this share of right first drafts the block's drafts are useless at any cost. An owner's prompts do not pass
/// through the block any more, and a stream has no drafts of it for a while.
const LEAST_RIGHT: f32 = 0.1;

/// First drafts that must have been seen before that is said of an owner.
const ENOUGH: f32 = 48.0;

/// How often an owner for which the block did not pay tries it again: with one in this many requests.
const TRY_EVERY: u32 = 16;

/// A stream that had no drafts for so many tokens may have some, as if nothing was known of it but whose it is.
const AGAIN_AFTER: u32 = 32;

/// Owners that are remembered; the one that was asked for longest ago is forgotten first.
const MAX_OWNERS: usize = 1024;

/// A drafter of texts, joined with the drafts of the model's own block.
#[derive(Debug)]
pub struct WithModel {
    texts: Box<dyn Drafter>,
    streams: BTreeMap<StreamId, Stream>,
    owners: BTreeMap<u64, Owner>,
    /// Requests so far: what "longest ago" means.
    n_asked: u64,
}

/// The block's drafts behind a stream's last tokens.
#[derive(Debug)]
struct Stream {
    owner: u64,
    run: Vec<(u32, f32)>,
    /// Tokens of the run that were drawn.
    n_came: usize,
    seen: Seen,
    /// Tokens that were drawn since the block drafted.
    n_without: u32,
    /// A text's draft of the next token, where the block's draft was taken instead: its source, the length of the
    /// match, and the token. It is judged as well, so that a text that has become right is noticed.
    unsaid: Option<(Source, usize, u32)>,
}

#[derive(Debug, Default)]
struct Owner {
    seen: Seen,
    /// The owner's requests since the last one whose prompt passed through the block, where that did not pay.
    n_without: u32,
    asked: u64,
}

impl Owner {
    /// Whether its drafts may be right often enough.
    fn hopes(&self) -> bool {
        self.seen.n_first() < ENOUGH || self.seen.share(0) >= LEAST_RIGHT
    }

    /// Whether that many are worth their time, or too little is known to tell.
    fn pays(&self, most: usize, pays: &dyn Fn(&[f32]) -> bool) -> bool {
        self.seen.n_first() < ENOUGH || (self.hopes() && pays(&self.seen.shares(most)))
    }
}

impl Stream {
    fn left(&self) -> &[(u32, f32)] {
        self.run.get(self.n_came..).unwrap_or_default()
    }

    /// The drafts behind `ahead`, if the tokens in flight are those that were drafted.
    fn behind(&self, ahead: &[u32]) -> &[(u32, f32)] {
        let left = self.left();
        let goes = ahead.len() <= left.len() && left.iter().zip(ahead).all(|(d, t)| d.0 == *t);
        if goes { &left[ahead.len()..] } else { &[] }
    }

    /// At most `most` of them as a draft.
    fn draft(&self, ahead: &[u32], most: usize) -> Draft {
        let rest = self.behind(ahead);
        let rest = &rest[..rest.len().min(most)];
        let matched = self.n_came + ahead.len();
        let odds = (matched..).zip(rest).map(|(depth, (_, odds))| self.seen.odds(depth, *odds));
        Draft {
            tokens: rest.iter().map(|(token, _)| *token).collect(),
            odds: odds.collect(),
            source: Source::Model,
            matched,
            is_proven: true,
        }
    }
}

/// How many of a draft's tokens will be right: each only if all before it are.
fn expected(draft: &Draft) -> f32 {
    let (mut all, mut sum) = (1.0, 0.0);
    for odds in &draft.odds {
        all *= odds;
        sum += all;
    }
    sum
}

impl WithModel {
    /// The same drafts as `texts`, and those of the model.
    pub fn new(texts: Box<dyn Drafter>) -> Self {
        Self { texts, streams: BTreeMap::new(), owners: BTreeMap::new(), n_asked: 0 }
    }

    /// The owner of this key, which is remembered from now on.
    fn owner(&mut self, key: u64) -> &mut Owner {
        if self.owners.len() >= MAX_OWNERS && !self.owners.contains_key(&key) {
            let oldest = self.owners.iter().min_by_key(|(_, owner)| owner.asked);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.owners.remove(&oldest);
            }
        }
        self.n_asked += 1;
        let owner = self.owners.entry(key).or_default();
        owner.asked = self.n_asked;
        owner
    }
}

impl Drafter for WithModel {
    fn begin(
        &mut self,
        id: StreamId,
        owner: OwnerId,
        tokens: &[u32],
        n_prompt: usize,
        expected: &[u32],
    ) {
        let of = self.owner(owner.key);
        // One that tries again hopes again.
        let seen = if of.hopes() { of.seen.for_a_stream() } else { Seen::default() };
        let stream = Stream {
            owner: owner.key,
            run: Vec::new(),
            n_came: 0,
            seen,
            n_without: 0,
            unsaid: None,
        };
        self.streams.insert(id, stream);
        self.texts.begin(id, owner, tokens, n_prompt, expected);
    }

    fn push(&mut self, id: StreamId, token: u32) {
        let mut unsaid = None;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.n_without = stream.n_without.saturating_add(1);
            unsaid = stream.unsaid.take();
        }
        if let Some(stream) = self.streams.get_mut(&id)
            && let Some((next, odds)) = stream.left().first().copied()
        {
            // Whether it was sent or not: it is known now.
            let (depth, right) = (stream.n_came, next == token);
            stream.seen.judged(depth, odds, right);
            if let Some(owner) = self.owners.get_mut(&stream.owner) {
                owner.seen.judged(depth, odds, right);
            }
            if right { stream.n_came += 1 } else { stream.run.clear() }
        }
        self.texts.push(id, token);
        if let Some((source, matched, said)) = unsaid {
            self.texts.judged(id, source, matched, said == token);
        }
    }

    fn must_follow(&mut self, id: StreamId, tokens: &[u32]) {
        self.texts.must_follow(id, tokens);
    }

    fn model_drafted(&mut self, id: StreamId, drafted: Vec<(u32, f32)>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.n_without = 0;
        // The newer ones know more; but what only says less of the same is no news.
        let same = drafted.iter().zip(stream.left()).all(|(new, old)| new.0 == old.0);
        if !same || drafted.len() > stream.left().len() {
            (stream.run, stream.n_came) = (drafted, 0);
        }
    }

    fn wants_model(&mut self, owner: OwnerId, most: usize, pays: &dyn Fn(&[f32]) -> bool) -> bool {
        let owner = self.owner(owner.key);
        if owner.pays(most, pays) {
            return true;
        }
        owner.n_without = (owner.n_without + 1) % TRY_EVERY;
        owner.n_without == 0
    }

    fn model_odds(&self, id: StreamId, most: usize) -> Vec<f32> {
        let Some(stream) = self.streams.get(&id) else { return Vec::new() };
        let of_owner = self.owners.get(&stream.owner).filter(|_| stream.n_without >= AGAIN_AFTER);
        let odds = of_owner.map_or(&stream.seen, |owner| &owner.seen).shares(most);
        if odds.first().is_some_and(|first| *first >= LEAST_RIGHT) { odds } else { Vec::new() }
    }

    fn draft(&mut self, id: StreamId, ahead: &[u32], most: usize) -> Draft {
        let of_text = self.texts.draft(id, ahead, most);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.unsaid = None;
        }
        let of_model = self.streams.get(&id).map(|stream| stream.draft(ahead, most));
        let Some(of_model) = of_model.filter(|draft| !draft.tokens.is_empty()) else {
            return of_text;
        };
        // A text that goes on along it says the same, and more.
        if of_text.tokens.starts_with(&of_model.tokens) {
            let mut both = Draft { is_proven: true, ..of_text };
            let odds = both.odds.iter_mut().zip(&of_model.odds);
            odds.for_each(|(odds, of_model)| *odds = odds.max(*of_model));
            return both;
        }
        // Where a grammar leaves no choice, the block's opinion does not count.
        let is_sure = of_text.source == Source::Grammar && of_text.tokens[0] != of_model.tokens[0];
        let is_better = of_text.is_proven && expected(&of_text) > expected(&of_model);
        if !of_text.tokens.is_empty() && (is_sure || is_better) {
            return of_text;
        }
        let said = of_text.tokens.first().filter(|_| ahead.is_empty());
        if let (Some(stream), Some(said)) = (self.streams.get_mut(&id), said) {
            stream.unsaid = Some((of_text.source, of_text.matched, *said));
        }
        of_model
    }

    fn judged(&mut self, id: StreamId, source: Source, matched: usize, right: bool) {
        // The block's are judged as they come.
        if source != Source::Model {
            self.texts.judged(id, source, matched, right);
        }
    }

    fn prepare(&mut self, id: StreamId, most: usize) -> usize {
        self.texts.prepare(id, most)
    }

    fn end(&mut self, id: StreamId) {
        self.streams.remove(&id);
        self.texts.end(id);
    }

    fn forget(&mut self, key: u64) {
        self.streams.retain(|_, stream| stream.owner != key);
        self.owners.remove(&key);
        self.texts.forget(key);
    }

    fn nbytes(&self) -> u64 {
        let streams = self
            .streams
            .values()
            .map(|s| size_of::<(StreamId, Stream)>() + s.run.capacity() * size_of::<(u32, f32)>());
        let owners = self.owners.len() * size_of::<(u64, Owner)>();
        self.texts.nbytes() + (streams.sum::<usize>() + owners) as u64
    }
}

#[cfg(test)]
mod tests;
