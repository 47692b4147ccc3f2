//! The workers behind a line: found, checked, placed, loaded, watched, replaced.
//!
//! [`start`] spawns the supervisor. It works towards one loaded line, and tells the driver whenever that goes
//! up or down ([`brigade_line::stages::link`]). The supervisor does not know requests, and the driver does not know workers:
//! it has an open line, whose states it asks for through [`brigade_line::stages::states`]. No token passes here.
//!
//! Reading order:
//!
//! - [`reconcile`] decides what to do next, and is pure. `supervisor` does it, and hears what happens.
//! - `members`: `member` is one worker as the supervisor wants it, `departed` remembers those that left. `dial`, `reach` and
//!   `conn` reach a worker, `hearts` says whether it is still there, and `pulse` what it said last. `join` hears of workers
//!   that come by themselves, `roll` says in words who is there, and `own_name` under which name they are held.
//! - `building` goes from connected workers to an open line: `place`, `load` and `lane` are its steps, `enough` says whether
//!   the model fits at all, and `progress` how far it is.
//! - `weights`: `prepare` sees to it that a worker has its bytes. `fetch` lets it fetch them, `gather` ask others, `relay` and
//!   `push` send them.
//! - `states`: `transfer` reads and writes sequences' states. `copies` puts them back from checkpoints, to the position that
//!   `choose` names; `prefixes` keeps the beginnings of prompts.
//! - `pool` lends workers that joined to the lines of several models; `supervisor/borrow` is a line's side of that.
//! - `local` starts child processes. `watch` finds who broke a line. [`pki`] says who is let in.

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
pub use pool::{Demand, PlannedLine, Pool, Seat, SeatId, Standing, planned};
pub use reconcile::{DEFAULT_REPLACE_AFTER, DEFAULT_SLOW_AFTER};
pub use start::{Cluster, ask, start};
