//! Server-sent events: how they are written, and how a stream of them is kept for a client that comes back.

pub(crate) mod position;
pub(crate) mod resumable;
pub(crate) mod sse;
pub(crate) mod writer;
