//! A worker process: one stage, its lane and its control service.
//!
//! Reading order:
//!
//! - [`config`] and [`run`] take a worker from its settings to its end.
//! - [`state`] is what a worker holds; in it [`session`](state::session) says who may call what.
//! - [`identity`] says who the worker is itself.
//! - [`services`] is what others call: the control service with its streams, the copies of other workers, and the
//!   [lane](services::lane), where frames come in. [`join`](services::join) tells a coordinator where the worker is.
//! - [`loading`] says what to load, from where, and whether it fits. [`weights`] has the bytes: the cache, files, hashes.
//! - [`executor`] is the one thread that owns the stage. Beside it stand what it is asked to do, results on their way out,
//!   and [`wire`](executor::wire), which converts messages to engine types and back.
//! - [`copies`] are checkpoints: taken, sent, kept, put back. [`prefixes`] are records of kept prefixes.
//!   [`records`] are the files that both are stored in.
//! - [`backend`] is what an engine must offer, with its speed and where experts are beside a GPU; [`stage`] is the engine
//!   that does.
//! - [`machine`] is what the process may take of its machine, and [`host`] which machine that is. [`node`] runs several
//!   stages of a machine, each in a process of its own.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "a brigade worker needs Linux: it reads /proc, and takes memfd_create, fcntl locks and fadvise from the kernel; build \
     for a target such as x86_64-unknown-linux-gnu"
);

pub mod backend;
pub mod config;
pub mod copies;
pub mod executor;
pub mod host;
pub mod identity;
pub mod loading;
pub mod machine;
pub mod node;
pub mod prefixes;
pub mod records;
pub mod run;
pub mod services;
pub mod stage;
pub mod state;
pub mod weights;

pub use config::{Config, RawConfig};
pub use run::{READY_PREFIX, WorkerError, run};
