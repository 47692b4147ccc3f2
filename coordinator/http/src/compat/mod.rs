//! Handlers that say the same in the words of other interfaces.

pub(crate) mod anthropic;
pub(crate) mod llama_cpp;
pub(crate) mod ollama;
pub(crate) mod responses;
