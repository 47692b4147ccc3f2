//! The coordinator: requests, scheduling, placement and the command line.
//!
//! Reading order: [`request`] (what can be run), [`handle`] (the front door), [`driver`] (the one
//! loop), [`sched`] (what runs when, sans-IO), [`plan`] (which layers go where, pure), [`cluster`]
//! (workers and the line), [`text_model`], [`generation`] and [`dialect`] (text in and out; reasoning and
//! calls in it), [`constrain`] (what an answer has to fit), [`http`] (OpenAI's JSON), [`cli`] (the commands). [`sim`] runs the scheduler against a simulated line;
//! [`meter`] and [`trace`] say what a real one did.

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
