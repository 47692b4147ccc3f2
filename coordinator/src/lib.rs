//! The coordinator: requests, scheduling, placement and the command line.
//!
//! Reading order:
//!
//! - [`request`] is what can be run. [`handle`] is the front door of a line, and [`driver`] the loop behind
//!   it.
//! - [`sched`] decides what runs when. It does no I/O: events go in, actions come out.
//! - [`plan`] decides which layers go where. It is pure as well. [`cluster`] has the workers and the line.
//! - [`text_model`], [`generation`] and [`dialect`] are about text, and the reasoning and calls in it.
//! - [`constrain`] says what an answer has to fit.
//! - [`adapters`] says which adapters a request uses.
//! - [`http`] is OpenAI's JSON, [`keys`] says who may ask for it, [`cli`] has the commands.
//! - [`sim`] runs the scheduler against a simulated line. [`meter`] and [`trace`] say what a real one did.

pub mod adapters;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod constrain;
pub mod dialect;
pub mod driver;
pub mod generation;
pub mod handle;
pub mod health;
pub mod http;
pub mod journal;
pub mod keys;
pub mod meter;
pub mod metrics;
pub mod model;
pub mod numerics;
pub mod pki;
pub mod plan;
pub mod pooling;
pub mod random;
pub mod record;
pub mod request;
pub mod sched;
pub mod sim;
pub mod text_model;
pub mod trace;
pub mod vector;
mod wire;
