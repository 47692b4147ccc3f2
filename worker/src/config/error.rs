//! Errors in a worker's settings.

use brigade_proto::address::AddressError;
use brigade_proto::tls::TlsError;

/// An invalid setting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An invalid address.
    #[error("{option}: {source}")]
    Address {
        /// The option's name.
        option: &'static str,
        /// The error in the address.
        source: AddressError,
    },
    /// A token or a name.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A CPU that this process cannot have.
    #[error("{option} names CPU {cpu}, and this process may use {allowed}")]
    Cpu {
        /// The option's name.
        option: &'static str,
        /// The CPU that cannot be used.
        cpu: usize,
        /// CPUs that may be used, as in 0-3,8.
        allowed: String,
    },
    /// Any other invalid value.
    #[error("{option}: \"{value}\" {problem}")]
    Value {
        /// The option's name.
        option: &'static str,
        /// The given value.
        value: String,
        /// The problem, and a remedy.
        problem: String,
    },
}

pub(crate) fn bad(
    option: &'static str,
    value: impl Into<String>,
    problem: impl Into<String>,
) -> ConfigError {
    ConfigError::Value { option, value: value.into(), problem: problem.into() }
}
