//! Answers to requests. Sequences are submitted, and their tokens become choices, vectors and JSON types that several
//! addresses share.

pub(crate) mod blocks;
pub(crate) mod chat_answer;
pub(crate) mod choices;
pub(crate) mod handover;
pub(crate) mod logprobs;
pub(crate) mod pooled;
pub(crate) mod prompt_logprobs;
pub(crate) mod sent_body;
pub(crate) mod stamp;
pub(crate) mod types;
