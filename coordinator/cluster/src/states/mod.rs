//! Sequences' states on the workers: read, written, copied, and recorded as prefixes of prompts.

pub(crate) mod choose;
pub(crate) mod copies;
pub(crate) mod prefixes;
pub(crate) mod transfer;
