//! Records: pieces of sequences' states as files of one folder. Kept prefixes are stored so, and checkpoints of running
//! sequences.
//!
//! - [`record`] is the form of records: those that were written together are one **bundle**.
//! - [`folder`] stores bundles as files. One is written after the other.
//! - [`space`] has the limit of checkpoints there.
//! - [`rate`] bounds how much is written, or sent, in a second.
//!
//! Which records are written, found and dropped is up to [`prefixes`](crate::prefixes) and to
//! [`copies`](crate::copies::disk).

use std::time::Duration;

pub mod folder;
pub mod rate;
pub mod record;
pub mod space;

/// Stands for tokens, a line, a realm or an owner.
pub type Key = [u8; 16];

/// The hash of all properties that states depend on: model, cache type, numerics, and the type of values between
/// stages.
pub type Kind = [u8; 32];

/// Bytes a second that a worker writes to its records at most, if it is not told otherwise, and as many to a neighbour's
/// memory.
pub const BYTES_PER_SECOND: u64 = 256 << 20;

/// How long a record stays that is neither read nor written.
pub const MAX_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
