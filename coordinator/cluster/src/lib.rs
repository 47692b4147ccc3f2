//! The workers behind a line: found, checked, placed, loaded, watched, replaced.
//!
//! [`start`] spawns the supervisor. It works towards one loaded line, and tells the driver whenever that goes
//! up or down ([`brigade_line::stages::link`]). The supervisor does not know requests, and the driver does not know workers:
//! it has an open line, whose states it asks for through [`brigade_line::stages::states`]. No token passes here.
//!
//! Reading order:
//!
//! - [`reconcile`] decides what to do next, and is pure. `supervisor` does it, and hears what happens.
//! - `members`: `member` is one worker as the supervisor wants it, `departed` remembers those that left. `dial`,
//!   `reach` and `conn` connect to a worker. `heartbeats` sends heartbeats, and `pulse` has the last answer. `join`
//!   accepts workers that come by themselves, `roll` lists workers in words, and `own_name` is the coordinator's own
//!   id.
//! - `building` goes from connected workers to an open line: `place`, `load` and `lane` are its steps. `fits` says
//!   whether the model fits at all, and `progress` counts bytes.
//! - `weights`: `prepare` sees to it that a worker has its bytes. With `fetch` the worker fetches them, with `gather`
//!   it asks other workers, and `relay` and `push` send them.
//! - `states`: `transfer` reads and writes sequences' states. `copies` restores them from checkpoints, at the
//!   position that `choose` finds. `prefixes` keeps records of prompts' prefixes.
//! - `pool` lends workers that joined to the lines of several models; `supervisor/borrow` is a line's side of that.
//! - `local` starts child processes. `watch` finds the workers that broke a line. [`pki`] is the cluster's authority.

mod building;
mod config;
mod local;
mod members;
pub mod pki;
mod pool;
mod progress;
pub mod reconcile;
mod start;
mod states;
mod supervisor;
mod watch;
mod weights;

pub use building::place::PlaceError;
pub use config::{ClusterConfig, JoinHint, Patience, Source, StageOptions};
pub use local::LocalOptions;
pub use members::conn::WorkerError;
pub use members::facts::worker_facts;
pub use members::own_name::{OwnName, OwnNameError};
pub use pool::{Demand, PlannedLine, Pool, Seat, SeatId, Standing, free, planned};
pub use reconcile::{DEFAULT_REPLACE_AFTER, DEFAULT_SLOW_AFTER};
pub use start::{Cluster, ask, start};
