//! The workers behind a line: found, checked, placed, loaded, watched, replaced.
//!
//! [`start`] spawns the supervisor. It works towards one loaded line, and tells the driver whenever that goes
//! up or down ([`brigade_line::link`]). The supervisor does not know requests, and the driver does not know workers:
//! it has an open line, whose states it asks for through [`brigade_line::states`]. No token passes here.
//!
//! Reading order:
//!
//! - [`reconcile`] decides what to do next, and is pure. `supervisor` does it, and hears what happens.
//! - `member` is one worker as the supervisor wants it. `departed` remembers those that left.
//! - `dial`, `reach` and `conn` reach a worker. `hearts` says whether it is still there.
//! - `pulse` is what its last heartbeat said. `enough` says whether the model fits on some workers.
//! - `local` starts child processes. `join` hears of workers that come by themselves.
//! - `build` goes from connected workers to an open line. Its parts are `facts`, `place`, `placed_stage`,
//!   `lease`, `load`, `progress` and `lane`.
//! - `prepare` sees to it that a worker has its weights: `fetch` lets it fetch them, `gather` ask others, `relay` and `push` send
//!   them.
//! - `states` reads and writes sequences' states. `copies` puts them back from checkpoints, to the position that
//!   `choose` names.
//! - `pool` lends workers that joined to the lines of several models; `supervisor/borrow` is a line's side of that.
//! - `own_name` is under which name workers are held, over restarts.
//! - `watch` finds who broke a line. `roll` says in words who is there. [`pki`] says who is let in.

mod ahead;
mod build;
mod choose;
mod config;
mod conn;
mod copies;
mod departed;
mod dial;
mod enough;
mod facts;
mod fetch;
mod gather;
mod hashes;
mod hearts;
mod join;
mod lane;
mod lease;
mod load;
mod local;
mod member;
mod own_name;
pub mod pki;
mod place;
mod placed_stage;
mod pool;
mod prefixes;
mod prepare;
mod progress;
mod pulse;
mod push;
mod reach;
pub mod reconcile;
mod relay;
mod roll;
mod start;
mod states;
mod supervisor;
mod watch;

pub use config::{ClusterConfig, JoinHint, Patience, Source, StageOptions};
pub use conn::WorkerError;
pub use facts::worker_facts;
pub use local::LocalOptions;
pub use own_name::{OwnName, OwnNameError};
pub use place::PlaceError;
pub use pool::{Demand, PlannedLine, Pool, Seat, SeatId, Standing, planned};
pub use reconcile::{DEFAULT_REPLACE_AFTER, DEFAULT_SLOW_AFTER};
pub use start::{Cluster, ask, start};
