//! A worker process: one stage, its lane and its control service.
//!
//! Reading order:
//!
//! - [`config`] and [`run`] take a worker from its settings to its end. [`join`] tells a coordinator where it
//!   is.
//! - [`state`] is what a worker holds. [`session`] says who may call what.
//! - [`credentials`] and [`membership`] say who the worker is itself.
//! - [`control`], [`push`], [`fetch`], [`gather`] and [`transfer`] are the control service. [`pace`] limits how many strangers it
//!   answers.
//! - [`order`] and [`load`] say what to load, from where, and whether it fits. Below them are [`cache`],
//!   [`hashes`], [`weights`] and [`pool`].
//! - The hot path begins in [`lane`] (frames in). [`executor`] is the one thread that owns the stage.
//!   [`requests`] knows which request a slot is for. [`output`] sends frames on. [`wire`] converts messages
//!   to engine types and back.
//! - [`copies`] are checkpoints: taken, sent, kept, put back.
//! - [`node`] runs several stages of a machine, each in a process with its [`share`] of it, that [`deal`] gives it,
//!   and its [`turns`] at computing.
//! - `sandbox` is what the process may do to files.
//! - [`backend`] is what an engine must offer, [`stage`] the engine that does, and [`measure`] its speed. [`experts`] and
//!   [`guests`] say where experts are beside a GPU.

pub mod backend;
pub mod cache;
pub mod config;
pub mod control;
pub mod copies;
pub mod credentials;
pub mod deal;
pub mod executor;
pub mod experts;
pub mod fetch;
pub mod gather;
pub mod guests;
pub mod hashes;
pub mod host;
pub mod jobs;
pub mod join;
pub mod lane;
mod lane_work;
pub mod load;
pub mod measure;
pub mod membership;
pub mod memory;
pub mod metrics;
pub mod node;
pub mod order;
pub mod output;
pub mod pace;
pub mod pool;
pub mod prefixes;
pub mod push;
pub mod requests;
pub mod run;
#[cfg(target_os = "linux")]
pub mod sandbox;
pub mod session;
pub mod share;
pub mod stage;
pub mod state;
pub mod transfer;
pub mod turns;
pub mod weights;
pub mod wire;

pub use config::{Config, RawConfig};
pub use run::{READY_PREFIX, WorkerError, run};
