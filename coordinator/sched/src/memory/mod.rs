//! Places on the line and what is kept in them: slots, pages, checkpoints, beginnings of prompts.

pub(crate) mod checkpoints;
pub(crate) mod growth;
pub(crate) mod namespace;
pub(crate) mod pages;
pub(crate) mod pool;
pub(crate) mod prefix;
mod slots;
