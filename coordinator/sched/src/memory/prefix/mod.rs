//! The prefix cache: states of earlier prompts and answers, with which later requests begin.
//!
//! A **kept state** is a slot without a sequence that stays open on all stages, with the pages that hold its
//! positions. A new request whose prompt begins with the tokens of one starts as a copy, and computes only the rest.
//! That is exact: a row's result depends on the tokens before it, and not on where a prompt was cut.
//!
//! All states stand in a radix tree of their tokens ([`tree`]), with the prompts that are being read. States are
//! shared only among requests with the same adapters and the same owner. Otherwise the time to the first token, or
//! the number of reused tokens, would tell a guesser what others have asked.
//!
//! - [`kept`] has the states and the tree. `eviction_order` says which state is evicted first,
//!   and `conversations` how likely one goes on.
//! - `reuse` begins sequences and keeps those that end; `evict` makes room for others.
//! - Where a model has recurrent layers, there is a state at the end of a sequence only. `marks` says where in a prompt
//!   such states are copied while it is read.
//! - `begin` finds the states that queued requests would begin with: these are evicted last.
//! - `shared` lets a request wait for a sequence that computes the beginning which both share.

mod begin;
mod beginning;
mod conversations;
mod evict;
mod eviction_order;
mod habits;
mod hold;
mod kept;
mod marks;
mod place;
mod reuse;
mod seen;
mod shared;
mod spoilt;
mod tiers;
mod tree;

pub(crate) use beginning::Beginning;
pub(crate) use habits::ConversationNo;
pub(crate) use hold::Hold;
pub use kept::KeptInfo;
pub(crate) use kept::KeptPool;
pub(crate) use place::Mark;
pub use seen::{Seen, SeenOwner, SeenState};
pub use spoilt::Spoilt;
pub use tiers::{KeptOf, space_of};
pub(crate) use tree::{NodeId, Space};

/// Counts of prompt tokens and of kept states, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// Tokens of prompts that got their places, of those for which anything may be kept.
    pub prompt_tokens: u64,
    /// Prompt tokens that were taken from kept states.
    pub reused_tokens: u64,
    /// States that were kept.
    pub kept: u64,
    /// States that went because a place was needed for another.
    pub evicted_for_places: u64,
    /// States that went because pages were needed.
    pub evicted_for_pages: u64,
    /// States whose last pages went because pages were needed.
    pub shortened: u64,
    /// States that were dropped because a sequence had invalid numbers.
    pub spoilt: u64,
    /// States that went because a longer one stands for them.
    pub covered: u64,
    /// States that an operator dropped.
    pub dropped: u64,
    /// Requests that waited until another had computed their common beginning.
    pub waits: u64,
    /// Rows that these did not compute for it.
    pub rows_avoided: u64,
}

impl PrefixCounts {
    /// The sums of two sets of counts.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            reused_tokens: self.reused_tokens + other.reused_tokens,
            kept: self.kept + other.kept,
            evicted_for_places: self.evicted_for_places + other.evicted_for_places,
            evicted_for_pages: self.evicted_for_pages + other.evicted_for_pages,
            shortened: self.shortened + other.shortened,
            spoilt: self.spoilt + other.spoilt,
            covered: self.covered + other.covered,
            dropped: self.dropped + other.dropped,
            waits: self.waits + other.waits,
            rows_avoided: self.rows_avoided + other.rows_avoided,
        }
    }
}
