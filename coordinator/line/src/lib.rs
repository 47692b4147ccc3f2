//! The line: the requests that run on it, and the keys of its clients. Nothing here knows of HTTP, or of workers.
//!
//! Reading order:
//!
//! - [`request`] is a validated request. [`handle`] is the front door of a line, and [`driver`] the loop behind it.
//!   [`failure`] says why a sequence ends before its time. The schedule is [`brigade_sched`]'s.
//! - [`stages`] is the line as the driver sees it. [`stages::link`] has the messages about lines,
//!   [`stages::open_line`] is a line that is up, and [`stages::states`] reads and writes states of sequences.
//!   [`stages::numerics`] says whether a stream can go on with the same bits, and [`stages::prefix_names`] names the
//!   records of prefixes on the workers. [`health`] shows the progress of a line, and [`admin`] takes an operator's
//!   questions and orders.
//! - [`model`] is the model that is served, and [`adapters`] are its LoRA adapters. [`generation`] turns tokens into
//!   text, and [`vector`] pools a text's rows into one vector.
//! - [`keys`] holds API keys. [`journal`] keeps streams over a restart.
//! - [`cached`] describes kept prompt states, and [`cache`] lists and drops them.
//! - [`measured`] counts what the line did. [`measured::record`] is the record of one ubatch; [`measured::meter`],
//!   [`measured::trace`] and [`measured::metrics`] are made of such records.
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
