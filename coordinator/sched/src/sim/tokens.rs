//! The tokens that the simulated stages draw.
//!
//! A made-up token is a hash of all tokens before it. So a client that knows its prompt can tell whether the line was
//! fed the right tokens in the right order, through the right adapters. With a companion it is a hash of both sequences'
//! tokens.

use brigade_engine::batch::AdapterUse;

use super::rng::mix;

/// The token that ends a sequence.
pub(super) const STOP_TOKEN: u32 = 0;

/// Made-up tokens are `1..VOCAB`, or [`STOP_TOKEN`] once in a workload's `stop_every`.
pub(super) const VOCAB: u64 = 32_000;

/// What decides the next token: all tokens before it, and the adapters that their rows passed through.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain(u64);

impl Chain {
    /// Of a sequence's first tokens.
    pub fn of(tokens: &[u32], adapters: &[AdapterUse]) -> Self {
        let hash = adapters.iter().fold(0x5eed, |hash, used| mix(hash ^ u64::from(used.adapter)));
        let mut chain = Self(hash);
        tokens.iter().for_each(|&token| chain.push(token));
        chain
    }

    /// A token follows.
    pub fn push(&mut self, token: u32) {
        self.0 = mix(self.0 ^ u64::from(token));
    }

    /// The token that comes next.
    pub fn next(self, stop_every: u64) -> u32 {
        if stop_every > 0 && mix(self.0).is_multiple_of(stop_every) {
            return STOP_TOKEN;
        }
        (1 + self.0 % (VOCAB - 1)) as u32
    }
}

/// The token after `tokens`, whose rows passed through `adapters`.
pub(super) fn next_token(tokens: &[u32], adapters: &[AdapterUse], stop_every: u64) -> u32 {
    Chain::of(tokens, adapters).next(stop_every)
}
