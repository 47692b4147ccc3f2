//! Addresses of llama.cpp's server.

mod answer;
pub(crate) mod completion;
pub(crate) mod infill;
pub(crate) mod props;
pub(crate) mod tokens;
