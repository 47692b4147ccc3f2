//! What an owner's conversations were like: how much a turn adds, how many other requests come in between, and at
//! which length conversations stop.

use std::collections::VecDeque;

/// Conversations of an owner that are remembered.
const REMEMBERED: usize = 32;

/// Conversations that must have stopped near the longest prompt, before this counts as a limit.
const STOPPED_AT_LIMIT: usize = 2;

/// A conversation has stopped when so many times as many requests of its owner came as usual between its turns.
const STOPPED_AFTER: f64 = 2.0;

/// Prompts are near the longest one from this share of it on.
const NEAR_LONGEST: f64 = 0.85;

/// The least odds of a state that leaves no room for a turn.
const NO_ROOM: f64 = 0.1;

/// The turns over which means are taken.
const MEAN_OF: u32 = 32;

/// The number of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConversationNo(pub u64);

/// A mean of the last values, the newest with the greatest weight.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    mean: f64,
    n: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.n = MEAN_OF.min(self.n + 1);
        self.mean += (value - self.mean) / f64::from(self.n);
    }
}

#[derive(Clone, Copy, Debug)]
struct Conversation {
    no: ConversationNo,
    /// Tokens of its longest prompt.
    longest: u32,
    /// The number of its last request among those of its owner.
    last: u64,
}

/// What one owner's conversations were like.
#[derive(Debug, Default)]
pub(super) struct Habits {
    requests: u64,
    /// Tokens between the end of an answer and that of the next prompt.
    growth: Mean,
    /// Requests of the owner from one turn of a conversation to the next.
    between: Mean,
    /// The conversations that began last, oldest first.
    recent: VecDeque<Conversation>,
}

impl Habits {
    /// A prompt of `n` tokens; `known`: of a conversation whose last state has so many.
    pub fn note(&mut self, no: ConversationNo, n: u32, known: Option<u32>) {
        self.requests += 1;
        if let Some(had) = known {
            self.growth.add(f64::from(n.saturating_sub(had)));
        }
        match self.recent.iter_mut().find(|conversation| conversation.no == no) {
            Some(conversation) => {
                self.between.add((self.requests - conversation.last) as f64);
                conversation.longest = conversation.longest.max(n);
                conversation.last = self.requests;
            }
            None => {
                self.recent.push_back(Conversation { no, longest: n, last: self.requests });
                let too_many = self.recent.len().saturating_sub(REMEMBERED);
                self.recent.drain(..too_many);
            }
        }
    }

    /// The odds that a conversation goes on behind a state of so many tokens.
    pub fn goes_on(&self, no: ConversationNo, len: u32) -> f64 {
        let longest = self.recent.iter().map(|other| other.longest).max().unwrap_or(0);
        let near = f64::from(longest) * NEAR_LONGEST;
        let has_stopped = |other: &&Conversation| {
            let since = (self.requests - other.last) as f64;
            other.no != no
                && f64::from(other.longest) >= near
                && since >= STOPPED_AFTER * self.between.mean
        };
        if self.recent.iter().filter(has_stopped).count() < STOPPED_AT_LIMIT {
            return 1.0;
        }
        let room = f64::from(longest.saturating_sub(len));
        // Turns are of very different lengths: some fit where their mean does not.
        let fits = room / (room + self.growth.mean.max(1.0));
        fits.max(NO_ROOM)
    }
}
