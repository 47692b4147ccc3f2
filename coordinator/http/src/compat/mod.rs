//! Handlers for the interfaces of other servers: llama.cpp, Ollama, Anthropic and OpenAI's Responses.

pub(crate) mod anthropic;
pub(crate) mod llama_cpp;
pub(crate) mod ollama;
pub(crate) mod responses;
