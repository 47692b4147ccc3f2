//! The workers behind a line: found, checked, placed, loaded, watched, replaced.
//!
//! [`start`] spawns the supervisor, which works towards one loaded line and tells the driver
//! whenever it goes up or down. It does not know requests; the driver does not know workers.
//!
//! Reading order: [`reconcile`] (what to do next, pure), `supervisor` (does it, and hears what happens),
//! `member` (one worker as the supervisor wants it), `departed` (what is remembered of those that left),
//! `dial` and `conn` (reaching one), `hearts` (whether it is still there), `enough` (whether some suffice), `local` (child processes), `join` (workers that come by themselves),
//! `build` (from connected workers to an open line: `facts`, `place`, `placed_stage`, `lease`, `load`, `lane`, with `progress`), `watch`
//! (who broke it), `roll` (who is there, in words), `link` (what the driver hears of it).

mod build;
mod config;
mod conn;
mod departed;
mod dial;
mod enough;
mod facts;
mod hashes;
mod hearts;
mod join;
pub mod lane;
mod lease;
mod link;
mod load;
mod local;
mod member;
mod place;
mod placed_stage;
mod progress;
mod push;
pub mod reconcile;
mod roll;
mod start;
mod states;
mod supervisor;
mod watch;

pub use config::{ClusterConfig, Patience, Source, StageOptions};
pub use conn::WorkerError;
pub use facts::worker_facts;
pub use lane::OpenLine;
pub use link::{ClusterLink, Fault, LineEvent};
pub use local::LocalOptions;
pub use place::PlaceError;
pub use start::{Cluster, ask, start};
pub use states::StateAccess;
