//! The client behind a request: its key, its share of common resources, and the records of what it used.

pub(crate) mod access;
pub(crate) mod audit;
pub(crate) mod concurrency;
pub(crate) mod connections;
pub(crate) mod name;
pub(crate) mod shares;
pub(crate) mod usage;
