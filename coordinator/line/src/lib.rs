//! The line: its workers, what runs on it, and who may ask. Nothing here knows of HTTP.
//!
//! Reading order:
//!
//! - [`request`] is what can be run. [`handle`] is the front door of a line, and [`driver`] the loop behind
//!   it. The schedule is [`brigade_sched`]'s.
//! - [`cluster`] has the workers and the line, cut as [`brigade_plan`] says. [`pki`] says who is let in, [`health`]
//!   how far the line is.
//! - [`model`] is what is served, [`adapters`] says which of its adapters a request uses. [`generation`] makes text of
//!   tokens, and [`vector`] one vector of a text's rows.
//! - [`keys`] says who may ask. [`journal`] keeps streams over a restart, and [`numerics`] says whether one can go on
//!   with the same bits.
//! - [`record`] is what is known of a ubatch. [`meter`], [`trace`] and [`metrics`] say what the line did.
//! - [`clock`] and [`random`] are small and below all others.

pub mod adapters;
pub mod clock;
pub mod cluster;
pub mod driver;
pub mod generation;
pub mod handle;
pub mod health;
pub mod journal;
pub mod keys;
pub mod meter;
pub mod metrics;
pub mod model;
pub mod numerics;
pub mod pki;
pub mod random;
pub mod record;
pub mod request;
pub mod trace;
pub mod vector;
mod wire;
