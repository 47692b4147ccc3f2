//! The command line of the coordinator, and of the whole program: `brigade` has one command for each thing to do.
//!
//! The commands use these crates, lowest first:
//!
//! - [`brigade_sched`] schedules ubatches. It does no I/O: events go in, actions come out. Its simulator runs it
//!   against a simulated line.
//! - [`brigade_plan`] assigns layers to workers. It is pure as well.
//! - [`brigade_dialect`] parses the text of models, with its reasoning and calls, and makes grammars for answers.
//! - [`brigade_line`] runs requests on a line, and measures it.
//! - [`brigade_http`] is the HTTP server, with OpenAI's JSON and that of others.
//!
//! [`cli`] has the commands.

pub mod cli;
