//! The line: what runs on it, and who may ask. Nothing here knows of HTTP, or of workers.
//!
//! Reading order:
//!
//! - [`request`] is what can be run. [`handle`] is the front door of a line, and [`driver`] the loop behind
//!   it. [`failure`] says why a sequence ends before its time. The schedule is [`brigade_sched`]'s.
//! - [`stages`] are what the driver has of a line: [`stages::link`] is what it hears of lines, [`stages::open_line`] one that is
//!   up, and [`stages::states`] what its stages are asked for. [`stages::numerics`] says whether a stream can go on with the
//!   same bits, and [`stages::prefix_names`] what kept prefixes are called below the stages' memory. [`health`] says how far the line is, [`admin`] what an operator may ask of the cluster behind it.
//! - [`model`] is what is served, [`adapters`] says which of its adapters a request uses. [`generation`] makes text of
//!   tokens, and [`vector`] one vector of a text's rows.
//! - [`keys`] says who may ask. [`journal`] keeps streams over a restart.
//! - [`cached`] is what is seen of kept prompts, and [`cache`] shows and drops it.
//! - [`measured`] says what the line did: [`measured::record`] is what is known of a ubatch, and [`measured::meter`],
//!   [`measured::trace`] and [`measured::metrics`] are made of that.
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
pub mod measured;
pub mod model;
pub mod random;
pub mod request;
pub mod stages;
pub mod vector;
