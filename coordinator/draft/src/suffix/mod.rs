//! Drafts from texts in which the stream's last tokens stood before.
//!
//! The longest end of a stream that stands in a text is looked up ([`index`]: chains of places by hashes of their
//! last tokens). The token that followed there most often is drafted, and so on; places that differ are left
//! ([`cursor`]). As long as drafts are right the same places are followed, and nothing is looked up. Tokens that a
//! grammar forces come before that ([`forced_tokens`]). The texts are the stream's own ([`stream`]), recent answers to its
//! owner ([`owner`]), and its client's prediction ([`expected`]). How often drafts were right is kept by text and
//! length of match ([`calibration`]).
//!
//! All texts together stay below one limit of memory. To make room, the owner that holds most loses its least
//! recently used answer. Streams that run lose nothing to others: a stream that does not fit beside them has no
//! drafts.

mod calibration;
mod cursor;
mod expected;
mod filter;
mod forced_tokens;
mod index;
mod owner;
mod path;
mod record;
mod stream;
mod table;
#[cfg(test)]
mod tests;
mod texts;

use std::collections::BTreeMap;

use filter::MAX_ANSWERS;
use owner::Owner;
use stream::Stream;
use table::Table;

use crate::{Draft, Drafter, OwnerId, Source, StreamId};

pub use path::MAX_AHEAD;

/// Bytes that all texts and their indices may take where nothing else is said.
pub const DEFAULT_MEMORY: u64 = 64 << 20;

/// The drafter without a model: see the module.
#[derive(Debug)]
pub struct Suffix {
    memory: usize,
    used: usize,
    streams: Table<StreamId, Stream>,
    owners: Table<OwnerId, Owner>,
}

impl Default for Suffix {
    fn default() -> Self {
        Self::new(DEFAULT_MEMORY)
    }
}

impl Suffix {
    /// A drafter that takes at most `memory` bytes; with 0 it drafts nothing.
    pub fn new(memory: u64) -> Self {
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        Self { memory, used: 0, streams: Table::default(), owners: Table::default() }
    }

    /// Bytes used, counted anew.
    #[cfg(test)]
    fn count(&self) -> u64 {
        for (id, owner) in self.owners.iter() {
            let own = self.streams.iter().filter(|(_, stream)| stream.owner == id);
            let bytes: Vec<usize> = own.map(|(_, stream)| stream.nbytes()).collect();
            assert_eq!((owner.n_streams, owner.stream_bytes), (bytes.len(), bytes.iter().sum()));
        }
        let streams = self.streams.iter().map(|(_, stream)| stream.nbytes()).sum::<usize>();
        let owners = self.owners.iter().map(|(_, owner)| owner.count()).sum::<usize>();
        (streams + owners + self.streams.nbytes() + self.owners.nbytes()) as u64
    }

    /// Sets the limit of memory for later calls.
    #[cfg(test)]
    fn limit(&mut self, memory: u64) {
        self.memory = memory as usize;
    }

    /// A stream and its owner.
    fn get(&mut self, id: StreamId) -> Option<(&mut Stream, &mut Owner)> {
        let stream = self.streams.get_mut(id)?;
        let owner = self.owners.get_mut(stream.owner)?;
        Some((stream, owner))
    }

    /// Makes room for `need` bytes more, if that needs no running stream's. The entry of `keep` stays.
    fn make_room(&mut self, need: usize, keep: OwnerId) -> bool {
        if self.used.saturating_add(need) <= self.memory {
            return true;
        }
        let answers: usize = self.owners.iter().map(|(_, owner)| owner.answer_bytes()).sum();
        if (self.used - answers).saturating_add(need) > self.memory {
            return false;
        }
        while self.used + need > self.memory {
            let Some(id) = self.next_to_give() else { return false };
            self.drop_answer(id);
            if id != keep {
                self.drop_if_idle(id);
            }
        }
        true
    }

    /// The owner that must give up an answer next: of the key that holds most over all its spaces, the space with
    /// most answers.
    fn next_to_give(&self) -> Option<OwnerId> {
        let mut held: BTreeMap<u64, usize> = BTreeMap::new();
        for (id, owner) in self.owners.iter() {
            *held.entry(id.key).or_default() += owner.answer_bytes() + owner.stream_bytes;
        }
        let with_answers = self.owners.iter().filter(|(_, owner)| !owner.answers().is_empty());
        let rank = |(id, owner): &(OwnerId, &Owner)| {
            (held.get(&id.key).copied(), id.key, owner.answer_bytes(), id.space)
        };
        with_answers.max_by_key(rank).map(|(id, _)| id)
    }

    fn drop_answer(&mut self, id: OwnerId) {
        let Some(owner) = self.owners.get_mut(id) else { return };
        let before = owner.answer_bytes();
        owner.drop_oldest();
        self.used -= before - owner.answer_bytes();
    }

    fn drop_if_idle(&mut self, id: OwnerId) {
        if self.owners.get(id).is_some_and(Owner::is_idle) {
            self.owners.remove(id);
            self.used -= Table::<OwnerId, Owner>::ENTRY;
        }
    }

    /// Takes a stream out. Its owner's entry stays.
    fn take(&mut self, id: StreamId) -> Option<Stream> {
        let stream = self.streams.remove(id)?;
        self.used -= stream.nbytes() + Table::<StreamId, Stream>::ENTRY;
        if let Some(owner) = self.owners.get_mut(stream.owner) {
            owner.n_streams -= 1;
            owner.stream_bytes -= stream.nbytes();
        }
        Some(stream)
    }

    fn drop_stream(&mut self, id: StreamId) {
        if let Some(stream) = self.take(id) {
            self.drop_if_idle(stream.owner);
        }
    }

    /// Keeps what a stream of `id` said.
    fn keep(&mut self, id: OwnerId, stream: Stream) {
        let Some(answer) = stream.into_answer() else { return };
        if self.owners.get(id).is_some_and(|owner| owner.answers().len() == MAX_ANSWERS) {
            self.drop_answer(id);
        }
        let need = self.owners.get(id).map_or(0, |owner| owner.bytes_to_keep(&answer));
        if !self.make_room(need, id) {
            return;
        }
        if let Some(owner) = self.owners.get_mut(id) {
            let before = owner.answer_bytes();
            owner.keep(answer);
            self.used += owner.answer_bytes() - before;
        }
    }
}

impl Drafter for Suffix {
    fn begin(
        &mut self,
        id: StreamId,
        owner_id: OwnerId,
        tokens: &[u32],
        n_prompt: usize,
        expected: &[u32],
    ) {
        self.drop_stream(id);
        let is_new = self.owners.get(owner_id).is_none();
        let for_owner = if is_new { Table::<OwnerId, Owner>::ENTRY } else { 0 };
        let for_stream = Stream::bytes_for(tokens.len(), expected.len());
        let need = for_owner + for_stream + Table::<StreamId, Stream>::ENTRY;
        if !self.make_room(need, owner_id) {
            return;
        }
        if is_new {
            self.owners.insert(owner_id, Owner::default());
        }
        if let Some(owner) = self.owners.get_mut(owner_id) {
            let stream = Stream::new(owner_id, owner, tokens, n_prompt, expected);
            owner.n_streams += 1;
            owner.stream_bytes += for_stream;
            self.streams.insert(id, stream);
            self.used += need;
        }
    }

    fn push(&mut self, id: StreamId, token: u32) {
        let Some((stream, _)) = self.get(id) else { return };
        let (growth, owner_id) = (stream.growth(), stream.owner);
        if growth > 0 {
            if !self.make_room(growth, owner_id) {
                return self.drop_stream(id);
            }
            self.used += growth;
        }
        if let Some((stream, owner)) = self.get(id) {
            owner.stream_bytes += growth;
            stream.push(token, owner);
        }
    }

    fn must_follow(&mut self, id: StreamId, tokens: &[u32]) {
        if let Some((stream, _)) = self.get(id) {
            stream.forced_tokens.tell(tokens);
        }
    }

    fn draft(&mut self, id: StreamId, ahead: &[u32], most: usize) -> Draft {
        let found = self.get(id);
        found.map_or_else(Draft::default, |(stream, owner)| stream.draft(ahead, most, owner))
    }

    fn judged(&mut self, id: StreamId, source: Source, matched: usize, right: bool) {
        // Drafts of a grammar are judged by the drawn tokens, sent or not. They say nothing about the accuracy of
        // texts.
        let is_of_text = !matches!(source, Source::Forced | Source::Grammar | Source::Model);
        if let Some((stream, owner)) = self.get(id).filter(|_| is_of_text) {
            stream.judged(source, matched, right);
            owner.seen.judged(source, matched, right);
        }
    }

    fn prepare(&mut self, id: StreamId, most: usize) -> usize {
        self.get(id).map_or(0, |(stream, _)| stream.prepare(most))
    }

    fn end(&mut self, id: StreamId) {
        if let Some(stream) = self.take(id) {
            let owner = stream.owner;
            self.keep(owner, stream);
            self.drop_if_idle(owner);
        }
    }

    fn forget(&mut self, key: u64) {
        let streams = self.streams.iter().filter(|(_, stream)| stream.owner.key == key);
        let streams: Vec<StreamId> = streams.map(|(stream, _)| stream).collect();
        for stream in streams {
            self.take(stream);
        }
        let spaces = self.owners.iter().map(|(id, _)| id).filter(|id| id.key == key);
        for id in spaces.collect::<Vec<_>>() {
            if let Some(owner) = self.owners.remove(id) {
                self.used -= owner.answer_bytes() + Table::<OwnerId, Owner>::ENTRY;
            }
        }
    }

    fn nbytes(&self) -> u64 {
        self.used as u64
    }
}
