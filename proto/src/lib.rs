//! The wire: generated message types, and what both ends of a connection share.
//!
//! Reading order:
//!
//! - [`control`], [`pipeline`] and [`copies`] are the messages, documented in the `.proto` files.
//! - [`limits`] has every cap, and [`address`] the rule about addresses beyond this machine.
//! - [`tls`] has keys, certificates and the checks of peers.
//! - [`net`] has one set of HTTP/2 settings, binds and dials, and limits what a stranger may send.
//! - [`count`] and [`codec`] see to it that nothing is decoded uncounted. [`frame`] checks what arrived.
//! - [`task`] spawns tasks.
//! - [`failure`] has reasons that cross the wire. [`capability`] checks a worker's capabilities.
//!
//! Nothing here knows engines, schedulers or processes.

pub mod address;
pub mod capability;
pub mod codec;
pub mod count;
pub mod failure;
pub mod frame;
mod frame_error;
pub mod limits;
pub mod net;
pub mod sampling;
pub mod task;
pub mod tls;

/// Newest version of everything in `proto/`. Two processes speak the newest that both know.
///
/// A version that only adds fields is compatible with the one before: a process drops unknown fields, so an absent
/// field must mean what the older process does. A version that changes more becomes the oldest one
/// ([`OLDEST_WIRE_VERSION`]).
///
/// - 1: first release.
/// - 2: Open and Copy name their request; a result row may say why it has no token;
///   Snapshot and Restore.
/// - 3: stage timings have start times, and the times of receiving and sending; boundaries in Q8_0.
/// - 4: an epoch is compared only with those of the same coordinator.
/// - 5: TLS between processes: stages know the keys of their neighbours, heartbeats carry revocations, and newcomers
///   enrol.
/// - 6: grammars for answers, more settings of the sampling chain, rows for embeddings.
/// - 7: sequences have names, and copies of their states are taken, kept and put back.
/// - 8: draws with mirostat; layers move with the states of their sequences: parting copies, and workers that retire
///   from a line.
/// - 9: heartbeats have the instance of a process; handshakes have a range of versions.
///
/// An optional new call needs no new version: a worker lists it in `Capabilities.features`.
pub const WIRE_VERSION: u32 = 9;

/// Oldest version that is still spoken: the one before, so that a cluster can be upgraded worker by worker.
pub const OLDEST_WIRE_VERSION: u32 = 8;

/// Program version, for logs and refusals; it never decides anything.
pub const SOFTWARE: &str = concat!("brigade ", env!("CARGO_PKG_VERSION"));

/// Control plane messages and services, generated from `control.proto`.
#[allow(missing_docs, clippy::all, reason = "generated code")]
pub mod control {
    include!("../generated/brigade.control.rs");
}

/// Messages and service of checkpoints, generated from `copies.proto`.
#[allow(missing_docs, clippy::all, reason = "generated code")]
pub mod copies {
    include!("../generated/brigade.copies.rs");
}

/// Data plane messages and services, generated from `pipeline.proto`.
#[allow(missing_docs, clippy::all, reason = "generated code")]
pub mod pipeline {
    include!("../generated/brigade.pipeline.rs");
}
