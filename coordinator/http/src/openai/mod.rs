//! Handlers of the addresses that OpenAI and servers like its have, each in a file.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod models;
pub(crate) mod reconnect;
pub(crate) mod rerank;
