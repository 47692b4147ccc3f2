//! What is wrong with a worker's settings.

use brigade_proto::address::AddressError;
use brigade_proto::tls::TlsError;

/// What is wrong with a setting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An address.
    #[error("{option}: {source}")]
    Address {
        /// Which option.
        option: &'static str,
        /// What is wrong.
        source: AddressError,
    },
    /// A token or a name.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A CPU that this process cannot have.
    #[error("{option} names CPU {cpu}, and this process may use {allowed}")]
    Cpu {
        /// Which option.
        option: &'static str,
        /// Which CPU.
        cpu: usize,
        /// Those it may use, as in 0-3,8.
        allowed: String,
    },
    /// Anything else.
    #[error("{option}: \"{value}\" {problem}")]
    Value {
        /// Which option.
        option: &'static str,
        /// What was given.
        value: String,
        /// What is wrong with it, and what would be right.
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
