//! The line: what runs on it, and who may ask. Nothing here knows of HTTP, or of workers.
//!
//! Reading order:
//!
//! - [`request`] is what can be run. [`handle`] is the front door of a line, and [`driver`] the loop behind
//!   it. [`failure`] says why a sequence ends before its time. The schedule is [`brigade_sched`]'s.
//! - [`link`] is what the driver hears of lines: an [`open_line`], or that it is gone. [`states`] is what its stages are
//!   asked for. [`health`] says how far the line is, [`admin`] what an operator may ask of the cluster behind it.
//! - [`model`] is what is served, [`adapters`] says which of its adapters a request uses. [`generation`] makes text of
//!   tokens, and [`vector`] one vector of a text's rows.
//! - [`keys`] says who may ask. [`journal`] keeps streams over a restart, and [`numerics`] says whether one can go on
//!   with the same bits.
//! - [`cached`] is what is seen of kept prompts, and [`cache`] shows and drops it. [`prefix_names`] says what kept prefixes are called below the stages' memory.
//! - [`record`] is what is known of a ubatch. [`meter`], [`trace`] and [`metrics`] say what the line did.
//! - [`clock`] and [`random`] are small and below all others.

pub mod adapters;
pub mod admin;
pub mod cache;
pub mod cached;
pub mod clock;
pub mod current;
pub mod driver;
pub mod failure;
pub mod generation;
pub mod handle;
pub mod health;
pub mod journal;
pub mod keys;
pub mod link;
pub mod meter;
pub mod metrics;
pub mod model;
pub mod numerics;
pub mod open_line;
pub mod prefix_names;
pub mod random;
pub mod record;
pub mod request;
pub mod stale;
pub mod states;
pub mod trace;
pub mod vector;
mod wire;
