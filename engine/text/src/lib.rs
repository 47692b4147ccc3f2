//! Text in and out: tokenizers that are built from a model's metadata, incremental detokenisation, stop
//! strings, and chat templates.
//!
//! - Ids equal llama.cpp's for every supported tokenizer and pre-tokenizer. An unknown one is an error that
//!   names it, never a guess.
//! - Time grows about linearly with the text.
//! - Nothing here knows requests, sequences or the network.
//!
//! Reading order: [`vocab`](VocabData) has the tables, `special` the roles of tokens. `partition` finds
//! special tokens in a text, `pretok` cuts text into pieces, and `merge`, `spm`, `bpe`, `wpm`, `ugm`, `rwkv` and
//! `plamo2` turn pieces into ids. [`Tokenizer`] puts them together. [`StreamDecoder`], [`StopMatcher`] and [`ChatTemplate`]
//! stand alone.

mod bpe;
mod bytes;
mod charsmap;
mod error;
mod from_gguf;
mod hash;
mod merge;
mod partition;
mod plamo2;
mod pretok;
mod rwkv;
mod special;
mod spm;
mod stop;
mod stream;
mod template;
#[cfg(test)]
mod tests;
mod text_table;
mod tokenizer;
mod ugm;
mod vocab;
mod wpm;

pub use error::TextError;
pub use stop::{MAX_STOP_BYTES, MAX_STOPS, StopMatcher, StopOutcome};
pub use stream::StreamDecoder;
pub use template::{
    CHATML, ChatTemplate, MAX_ELIFS, MAX_REPEATED_CONSTANTS, MAX_TAG_TOKENS, MAX_TEMPLATE_BYTES,
    MAX_TEMPLATE_BYTES_HELD, MAX_TEMPLATE_COUNT, MAX_TEMPLATE_DEPTH, MAX_TEMPLATE_NAMES,
    MAX_TEMPLATE_TOKENS, MAX_TEMPLATE_WORK, TEMPLATE_BYTES, TEMPLATE_BYTES_PER_INPUT,
    TEMPLATE_FUEL, TEMPLATE_WORK, TEMPLATE_WORK_PER_INPUT, TemplateInput, TemplateTokens,
};
pub use tokenizer::{MAX_TEXT_BYTES, PairMarks, Tokenizer};
pub use vocab::{Kind, MAX_VOCAB, SpecialIds, VocabData, VocabFlags};
