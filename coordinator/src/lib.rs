//! The command line of the coordinator, and of the whole program: `brigade` has one command for each thing to do.
//!
//! What the commands put together lies in crates of its own, lowest first:
//!
//! - [`brigade_sched`] decides what runs when. It does no I/O: events go in, actions come out. Its simulator runs it
//!   against a simulated line.
//! - [`brigade_plan`] decides which layers go where. It is pure as well.
//! - [`brigade_dialect`] is about text, the reasoning and calls in it, and what an answer has to fit.
//! - [`brigade_line`] has the workers and the line, the front door to it, and what was measured.
//! - [`brigade_http`] is OpenAI's JSON and its kin.
//!
//! [`cli`] has the commands.

pub mod cli;
