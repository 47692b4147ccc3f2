//! A worker process: one stage, its lane and its control service.
//!
//! Reading order: [`run`] (from settings to the end), [`state`] (what a worker holds) over
//! [`session`] (who may call what), [`control`], [`push`] and [`transfer`] (the control service), [`pace`] (how
//! many strangers it answers), [`order`] and [`load`] (what to load, from where, and whether it fits) over
//! [`cache`], [`hashes`], [`weights`] and [`pool`]; then the hot path: [`lane`] (frames in), [`executor`] (the one thread that owns the
//! stage), [`requests`] (which request a slot is for), [`output`] (frames out), [`wire`] (messages to engine types and back).
//! [`copies`] are checkpoints: taken, sent, kept, put back.
//! [`backend`] is what an engine must offer, [`stage`] the engine that does, [`measure`] its speed.

pub mod backend;
pub mod cache;
pub mod config;
pub mod control;
pub mod copies;
pub mod executor;
pub mod hashes;
pub mod host;
pub mod join;
pub mod lane;
pub mod load;
pub mod measure;
pub mod memory;
pub mod metrics;
pub mod order;
pub mod output;
pub mod pace;
pub mod pool;
pub mod push;
pub mod requests;
pub mod run;
pub mod session;
pub mod stage;
pub mod state;
pub mod transfer;
pub mod weights;
pub mod wire;

pub use config::{Config, RawConfig};
pub use run::{READY_PREFIX, WorkerError, run};
