//! Drafters propose the next tokens of a stream (speculation).
//!
//! A line of workers serves a lone stream faster when it computes the stream's likely future beside its present.
//! Drafters propose that future. Drafts never change an answer: a draft that differs from the drawn token is thrown
//! away.
//!
//! Nothing here does I/O, reads a clock or draws random numbers. The same calls give the same drafts, so a scheduler that
//! asks stays deterministic.
//!
//! - [`Suffix`] finds the stream's last tokens in texts: its own, its owner's recent answers, and its client's
//!   prediction. It also drafts tokens that a grammar forces.
//! - [`WithModel`] adds the drafts of the model's own drafting block.
//! - [`Forced`] drafts a recorded answer with a chosen share of wrong tokens, for benchmarks.

mod model;
mod recorded;
mod suffix;

use std::fmt::Debug;

pub use model::WithModel;
pub use recorded::Forced;
pub use suffix::{DEFAULT_MEMORY, MAX_AHEAD, Suffix};

/// The request that tokens are drafted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// The owner of a stream. Drafts never come from another owner's texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId {
    /// The number of the owner's key.
    pub key: u64,
    /// The namespace within the owner's texts: texts of one are never drafted in another.
    pub space: u128,
}

impl OwnerId {
    /// The id of an owner with a single space.
    pub const fn of(key: u64) -> Self {
        Self { key, space: 0 }
    }
}

/// The kind of text that a draft comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The request's own prompt and answer.
    #[default]
    Own,
    /// Recent answers to the same owner.
    Recent,
    /// The client's prediction.
    Expected,
    /// An answer that is known, see [`Forced`].
    Forced,
    /// The answer's grammar, which leaves no choice.
    Grammar,
    /// The model's own block of drafts.
    Model,
}

impl Source {
    /// All sources, in the order of counts.
    pub const ALL: [Self; 6] =
        [Self::Own, Self::Recent, Self::Expected, Self::Forced, Self::Grammar, Self::Model];

    /// The source's name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Recent => "recent",
            Self::Expected => "expected",
            Self::Forced => "forced",
            Self::Grammar => "grammar",
            Self::Model => "model",
        }
    }
}

/// Tokens that may come next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// The tokens, in order. Empty: the drafter has no idea.
    pub tokens: Vec<u32>,
    /// For each token of `ahead` and of this draft, the estimated probability (0 to 1) that it is right where all
    /// before it are.
    pub odds: Vec<f32>,
    /// The source of all tokens.
    pub source: Source,
    /// How many of the last tokens before the draft (`ahead` among them) stand before these tokens in the text that
    /// they come from. For token `i` of the draft it is `matched + i`.
    pub matched: usize,
    /// Whether the stream has shown that drafts like this are right. If not, few at a time are worth their rows: most texts
    /// repeat some words, and few go on like that.
    pub is_proven: bool,
}

/// Guesses the next tokens of streams.
///
/// A stream that it does not know (never begun, ended, forgotten, or too large for its memory) has empty drafts, and calls
/// for it do nothing.
pub trait Drafter: Send + Debug {
    /// A stream begins, or goes on after a lost line. `tokens` are its prompt of `n_prompt` tokens and what was generated.
    /// `expected` is what its client says the answer will be like; it may be empty. A stream of this name is begun anew.
    fn begin(
        &mut self,
        stream: StreamId,
        owner: OwnerId,
        tokens: &[u32],
        n_prompt: usize,
        expected: &[u32],
    );

    /// A token was drawn: it is sure.
    fn push(&mut self, stream: StreamId, token: u32);

    /// The text of these tokens must follow the stream's sure tokens, by its grammar; it may come in other tokens.
    fn must_follow(&mut self, stream: StreamId, tokens: &[u32]) {
        let _ = (stream, tokens);
    }

    /// Takes the drafts of the model's own block behind the stream's sure tokens, each with the block's probability.
    fn model_drafted(&mut self, stream: StreamId, drafted: Vec<(u32, f32)>) {
        let _ = (stream, drafted);
    }

    /// Whether the next request of an owner is to pass through the model's own block: its drafts have been right so often that
    /// they pay, or may by now. `pays` says so of how likely drafts are right, at most `most` of them, each where all before it
    /// are. Asked once for each request.
    fn wants_model(&mut self, owner: OwnerId, most: usize, pays: &dyn Fn(&[f32]) -> bool) -> bool {
        let _ = (owner, most, pays);
        false
    }

    /// How likely the block's next drafts for a stream are right, at most `most` of them, each where all before it are. Empty:
    /// none are of use.
    fn model_odds(&self, stream: StreamId, most: usize) -> Vec<f32> {
        let _ = (stream, most);
        Vec::new()
    }

    /// Drafts at most `most` tokens that may follow the stream's sure tokens and `ahead`, which were drafted before
    /// and are in flight. There may be fewer where a text ends; what follows then comes with the next call.
    fn draft(&mut self, stream: StreamId, ahead: &[u32], most: usize) -> Draft;

    /// Reports whether a drafted token was right. Only tokens count before which all were right. `matched` is the
    /// draft's number of matched tokens plus the token's index in the draft. Later `odds` follow from it.
    fn judged(&mut self, stream: StreamId, source: Source, matched: usize, right: bool);

    /// Uses the time while a stream's prompt is computed to get ready: at most `most` of the stream's tokens are made
    /// ready to be found. Returns how many are still to do. Drafts are made without it as well, from finished work.
    fn prepare(&mut self, stream: StreamId, most: usize) -> usize {
        let _ = (stream, most);
        0
    }

    /// The stream is over. Its answer, the tokens behind its prompt, is kept among its owner's texts.
    fn end(&mut self, stream: StreamId);

    /// An owner is gone, as when a key was revoked: all its texts and streams are dropped, in all its spaces.
    fn forget(&mut self, key: u64);

    /// Bytes of memory in use.
    fn nbytes(&self) -> u64;
}
