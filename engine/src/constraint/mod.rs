//! Constrained answers: which tokens may follow, by a grammar that the answer has to fit.
//!
//! A [`Constraint`](crate::batch::Constraint) says which grammar holds from where. [`Vocabulary`] is a model's
//! tokens as a trie of bytes, with the grammars that were compiled for it. [`Running`] follows one answer and makes its
//! masks. [`Masks`] keeps the masks of all slots of a last stage. It makes the next one beside the compute threads
//! ([`turns`]), while the drawn token is on its way through the line. No ubatch waits for one: a draw without its mask is
//! put off.
//!
//! Promises: a mask follows from the constraint and the answer's tokens alone, so a sequence that goes on after a lost
//! line, or on another cut, has the same ones. The cost of a grammar is capped by counts, not by time. Grammars are in
//! llguidance's dialect of Lark, or a list of named ones as JSON. This module knows nothing of requests.

mod compiled;
mod masks;
mod running;
#[cfg(test)]
mod tests;
pub mod turns;
mod vocabulary;
mod work_time;

pub use compiled::MAX_COMPILED;
pub use masks::{Drawn, Masks, VocabularySource};
pub use running::Running;
pub use vocabulary::{Mask, Vocabulary, check_grammar, check_grammar_while, regex_for_lark};
pub use work_time::WorkTime;

/// Reasons why an answer cannot be held to its constraint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The grammar is wrong, or larger than may be.
    #[error("the grammar cannot be used: {0}")]
    Grammar(String),
    /// The model's vocabulary is not known here, or has no texts.
    #[error("the answer cannot be held to a grammar: {0}")]
    Vocabulary(String),
    /// The drawn tokens do not match the grammar, or the next mask takes more steps than are allowed.
    #[error("the grammar gives no next token: {0}")]
    Stuck(String),
    /// The sender does not wait for the result any more.
    #[error("the grammar was given up: whoever sent it has left")]
    Unwanted,
}

impl ConstraintError {
    /// Whether a stage's word about why it drew no token is about a grammar, and not about the model's numbers.
    pub fn is_told_by(reason: &str) -> bool {
        let words = ["the grammar cannot be used: ", "the grammar gives no next token: "];
        words.iter().any(|words| reason.contains(words))
    }
}
