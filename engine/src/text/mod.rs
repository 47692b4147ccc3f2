//! Text in and out: tokenizers built from a model's metadata, incremental detokenisation, stop
//! strings, chat templates.
//!
//! Promises: the ids equal llama.cpp's for every supported tokenizer and pre-tokenizer; an unknown
//! one is an error that names it, never a guess; time grows about linearly with the text. Nothing
//! here knows of requests, sequences or the network.
//!
//! Reading order: [`vocab`](VocabData) (tables), `special` (roles of tokens), `partition` (special
//! tokens in text), `pretok` (text to pieces), `merge`, `spm`, `bpe`, `wpm`, `ugm` (pieces to
//! ids), [`Tokenizer`] (all of them together), then [`StreamDecoder`], [`StopMatcher`] and
//! [`ChatTemplate`], which stand alone.

mod bpe;
mod bytes;
mod charsmap;
mod error;
mod from_gguf;
mod hash;
mod merge;
mod partition;
mod pretok;
mod special;
mod spm;
mod stop;
mod stream;
mod template;
#[cfg(test)]
mod tests;
mod tokenizer;
mod ugm;
mod vocab;
mod wpm;

pub use error::TextError;
pub use stop::{MAX_STOP_BYTES, MAX_STOPS, StopMatcher, StopOutcome};
pub use stream::StreamDecoder;
pub use template::{
    CHATML, ChatTemplate, MAX_REPEATED_CONSTANTS, MAX_TEMPLATE_BYTES, MAX_TEMPLATE_BYTES_MADE,
    MAX_TEMPLATE_COUNT, MAX_TEMPLATE_DEPTH, TEMPLATE_BYTES, TEMPLATE_BYTES_PER_INPUT,
    TEMPLATE_FUEL, TemplateInput, TemplateTokens,
};
pub use tokenizer::{MAX_TEXT_BYTES, Tokenizer};
pub use vocab::{Kind, MAX_VOCAB, SpecialIds, VocabData, VocabFlags};
