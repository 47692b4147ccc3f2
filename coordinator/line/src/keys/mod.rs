//! API keys: access, permitted models, and quotas.
//!
//! [`record`] is a key as it is stored: everything but its secret, of which only the hash is known. [`store`] is the
//! file that holds all of them; commands replace it as a whole. [`watch`] reads it again when it has changed, so that
//! a change takes effect within [`watch::POLL`] without a restart. Code that works for a key sees its end in
//! [`Force`]. [`groups`] lists keys that share kept prompts. [`account`] counts what a key has used, in memory. Knows
//! nothing of HTTP.

pub mod account;
pub mod bucket;
pub mod groups;
pub mod record;
pub mod store;
pub mod watch;

pub use account::{Account, Force, KeyEnd, Left, Refusal, Standing, Ticket};
pub use groups::{GroupError, KeyGroup, KeyGroups};
pub use record::{KeyRecord, Priority, Secret};
pub use store::{KeyFile, KeyFileError};
pub use watch::{KeyRing, Keys};
