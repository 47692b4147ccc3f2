//! Pre-tokenizers: they cut a text into pieces, and BPE merges only inside a piece.
//!
//! A pre-tokenizer is a list of steps. Each step splits the pieces of the one before, and what it does not
//! match stays as a piece. The regex engines imitate llama.cpp's. Its simplifications (one stand-in for all
//! letters of other scripts, and so on) decide the edge cases.

mod class;
mod matchers;
mod patterns;
mod splitter;
mod table;

pub(super) use class::{CONTROL, MARK, PUNCTUATION, SPACE, SYMBOL, class_of};
pub(super) use splitter::Splitter;
pub(super) use table::find;

/// Steps for a name in `tokenizer.ggml.pre`.
#[derive(Clone, Debug)]
pub(super) struct Pretok {
    /// Applied one after the other.
    pub steps: Vec<Step>,
    /// Token texts are plain UTF-8 and not in the byte alphabet.
    pub raw_utf8: bool,
    /// Spaces are written as U+2581 before splitting.
    pub escape_spaces: bool,
    /// A piece of newlines alone may be a token as a whole.
    pub newlines_whole: bool,
    /// Any piece may be a token as a whole, whatever the merges say.
    pub ignore_merges: bool,
    /// BOS is added unless the file says otherwise.
    pub add_bos: bool,
    /// BOS is added even if the file says otherwise.
    pub force_bos: bool,
    /// The vocabulary may come without merges.
    pub merges_optional: bool,
}

/// One way to split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The words of GPT-2's pattern.
    Gpt2,
    /// Llama 3's words and their relatives.
    Llama3 {
        /// Digits that stay together.
        digits: usize,
        /// Combining marks count as letters.
        marks: bool,
    },
    /// Kimi K2's words, Han apart.
    Kimi,
    /// Threes of digits counted from the right; what precedes a number stays with its first group.
    NumberGroups,
    /// Threes of ASCII digits counted from the right.
    AsciiGroups,
    /// Newlines apart from everything else.
    Newlines,
    /// A regular expression, as files of models have it.
    Regex(String),
}
