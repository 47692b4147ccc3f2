//! Addresses of llama.cpp's server.

pub(crate) mod infill;
pub(crate) mod props;
pub(crate) mod tokens;
