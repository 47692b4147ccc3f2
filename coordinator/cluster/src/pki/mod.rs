//! The cluster's own authority: tokens to join, nodes that have joined, and revocations.
//!
//! Everything lies in the folder `cluster` of the data folder, so that commands work while the server runs: each takes
//! the folder's lock, reads, changes and writes whole files. A running server sees changes within a second.
//!
//! Reading order: [`folder`] (the files), [`tokens`] (for joining), [`roster`] (the nodes), [`authority`] (its key),
//! [`enrol`] (issues certificates), [`upkeep`] (renewals and revocations of a running server).

mod authority;
mod enrol;
mod folder;
mod roster;
mod tokens;
mod upkeep;

#[cfg(test)]
mod tests;

pub use authority::{PkiError, has_authority, new_authority};
pub use enrol::{Issued, Pki, Refusal};
pub use folder::Folder;
pub use roster::{Node, Standing};
pub use tokens::MadeToken;
pub use upkeep::{Upkeep, credentials, external};
