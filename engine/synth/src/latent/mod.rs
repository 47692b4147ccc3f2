//! Synthetic models of DeepSeek's kind and those that grew from it: latent attention, indexes and entries, Kimi's delta
//! attention, and tokens with several streams.

pub(super) mod compressed;
pub(super) mod deepseek;
pub(super) mod indexed;
pub(super) mod kimi;
pub(super) mod kimi_k3;
pub(super) mod qwen4exp;
pub(super) mod streams;
