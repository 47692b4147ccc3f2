//! The coordinator: requests, scheduling, placement and the command line.
//!
//! Reading order: [`request`] (what can be run), [`handle`] (the front door), [`driver`] (the one
//! loop), [`sched`] (what runs when, sans-IO), [`plan`] (which layers go where, pure), [`cluster`]
//! (workers and the line), [`text_model`], [`generation`] and [`dialect`] (text in and out; reasoning and
//! calls in it), [`http`] (OpenAI's JSON), [`cli`] (the commands). [`sim`] runs the scheduler against a simulated line;
//! [`meter`] and [`trace`] say what a real one did. [`journal`] is what the next coordinator goes on from.

pub mod cli;
pub mod clock;
pub mod cluster;
pub mod dialect;
pub mod driver;
pub mod generation;
pub mod handle;
pub mod health;
pub mod http;
pub mod journal;
pub mod meter;
pub mod metrics;
pub mod model;
pub mod plan;
pub mod random;
pub mod record;
pub mod request;
pub mod sched;
pub mod sim;
pub mod text_model;
pub mod trace;
mod wire;
