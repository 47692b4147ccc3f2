//! Authentication of peers: keys, certificates of the cluster's own authority, and TLS 1.3 between processes.
//!
//! A process is known by its **key**; a certificate says which role and name the cluster's authority
//! gave to it, and for how long. Peers are dialled by address and verified by key and role, never by
//! the name of a host.
//!
//! Reading order: [`key`] (keys and their ids), [`party`] (roles and names), [`authority`] (issues certificates),
//! [`token`] (for new machines), [`voucher`] (for the stages of a node), [`files`] (on disk), [`verify`] (checks of certificates), [`revoked`] (revocations),
//! [`identity`] (the process's own certificate), [`credentials`] (all of these together, for TLS), `server_name` (which
//! stage of a node is meant), [`stream`] (the connection itself), [`error_text`] (error messages).
//!
//! Knows nothing of calls, or of what a coordinator keeps.

pub mod authority;
pub mod bundle;
pub mod credentials;
pub mod error_text;
pub mod external;
pub mod files;
mod hangup;
pub mod identity;
pub mod key;
pub mod party;
mod provider;
pub mod revoked;
pub(crate) mod server_name;
pub mod stream;
pub mod token;
pub mod verify;
pub mod voucher;

#[cfg(test)]
mod tests;

pub use authority::Authority;
pub use bundle::Bundle;
pub use credentials::Credentials;
pub use external::External;
pub(crate) use hangup::Hangup;
pub use identity::Identity;
pub use key::{KeyId, NodeKey, PublicKey};
pub use party::{Party, Role, Who};
pub use revoked::Revoked;
pub use token::Token;

/// Why something about keys, certificates or their files is no good.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file's path.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file or a message does not hold what it should.
    #[error("{what}: {problem}")]
    Malformed {
        /// The file or the message.
        what: String,
        /// The problem, and a remedy.
        problem: String,
    },
    /// A cryptographic operation failed.
    #[error("cannot {what}: {reason}")]
    Crypto {
        /// The operation.
        what: &'static str,
        /// The library's error.
        reason: String,
    },
}

impl TlsError {
    pub(crate) fn malformed(what: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Malformed { what: what.into(), problem: problem.into() }
    }

    pub(crate) fn crypto(what: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::Crypto { what, reason: reason.to_string() }
    }
}

/// A certificate as TLS carries it.
pub type Der = rustls::pki_types::CertificateDer<'static>;

/// Seconds since the Unix epoch, now.
pub fn unix_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // Before 1970 no certificate is good either.
    now.map_or(0, |since| since.as_secs())
}
