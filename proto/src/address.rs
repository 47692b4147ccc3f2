//! Addresses of processes: `HOST:PORT`, `HOST:PORT/STAGE` or `unix:PATH`. This module also has the rule that nothing beyond
//! this machine is bound or dialled unless the user allows it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Once;

use crate::limits::MAX_NAME_BYTES;

const UNIX_PREFIX: &str = "unix:";
/// Stands between a node's address and the number of its stage.
const STAGE_SEPARATOR: char = '/';

/// The stage that a peer means who names none: the first of a node, or a worker that is no node.
pub const FIRST_STAGE: u8 = 1;
/// Stages that one address can have.
pub const MAX_STAGES_AT_ADDRESS: u8 = 64;

/// Where a process listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP endpoint; the host is a name or an IP address (IPv6 in brackets).
    Tcp {
        /// The host, an IPv6 address without brackets.
        host: String,
        /// Port; 0 asks for any when binding.
        port: u16,
        /// Number of the stage, where a node has several at this port; [`FIRST_STAGE`] is not written.
        stage: u8,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Why an address was refused.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The text is not an address.
    #[error(
        "\"{text}\" is not an address: write HOST:PORT, [IPV6]:PORT or unix:PATH, or HOST:PORT/2 for the second stage \
         of a node (at most {MAX_STAGES_AT_ADDRESS})"
    )]
    Malformed {
        /// The given text.
        text: String,
    },
    /// Beyond this machine without permission.
    #[error(
        "{address} is not on this machine, and a plain connection would be open to anyone there: give \
         --data-dir to the coordinator and a token to each worker (brigade token create), use a loopback \
         address or a Unix socket, or pass --insecure-network"
    )]
    NotLoopback {
        /// The given address.
        address: String,
    },
    /// An address to listen on with the number of a stage.
    #[error("{address} names a stage of a node, and is to be listened on: leave the number out")]
    NoPlaceOfStage {
        /// The given address.
        address: String,
    },
    /// The name does not resolve.
    #[error("cannot resolve {address}: {source}")]
    Unresolved {
        /// The given address.
        address: String,
        /// The resolver's error.
        source: std::io::Error,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || AddressError::Malformed { text: text.chars().take(200).collect() };
        if text.len() > MAX_NAME_BYTES {
            return Err(malformed());
        }
        if let Some(path) = text.strip_prefix(UNIX_PREFIX) {
            if path.is_empty() {
                return Err(malformed());
            }
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
        let (port, stage) = match port.split_once(STAGE_SEPARATOR) {
            Some((port, stage)) => (port, stage_number(stage).ok_or_else(malformed)?),
            None => (port, FIRST_STAGE),
        };
        let port = port.parse().map_err(|_| malformed())?;
        let host = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(v6) if v6.parse::<std::net::Ipv6Addr>().is_ok() => v6,
            Some(_) => return Err(malformed()),
            None => host,
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if host.is_empty() || !(host.parse::<IpAddr>().is_ok() || host.chars().all(plain)) {
            return Err(malformed());
        }
        Ok(Self::Tcp { host: host.to_owned(), port, stage })
    }
}

/// The number of a stage as text: 1 to [`MAX_STAGES_AT_ADDRESS`], in the one form that it is written in.
pub(crate) fn stage_number(text: &str) -> Option<u8> {
    let is_plain = !text.starts_with(['0', '+']);
    let number = text.parse().ok().filter(|_| is_plain)?;
    (FIRST_STAGE..=MAX_STAGES_AT_ADDRESS).contains(&number).then_some(number)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}")?,
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}")?,
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display())?,
        }
        match self.stage() {
            FIRST_STAGE => Ok(()),
            stage => write!(f, "{STAGE_SEPARATOR}{stage}"),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::tcp(addr.ip().to_string(), addr.port())
    }
}

impl Address {
    /// A TCP endpoint whose first stage, or only worker, is meant.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::Tcp { host: host.into(), port, stage: FIRST_STAGE }
    }

    /// The stage that is meant at this address.
    pub fn stage(&self) -> u8 {
        match self {
            Self::Tcp { stage, .. } => *stage,
            Self::Unix(_) => FIRST_STAGE,
        }
    }

    /// Stage `number` of the node at this address. A Unix socket has one worker, and stays what it is.
    #[must_use]
    pub fn of_stage(self, number: u8) -> Self {
        match self {
            Self::Tcp { host, port, .. } => Self::Tcp { host, port, stage: number },
            unix @ Self::Unix(_) => unix,
        }
    }

    /// The socket addresses of a TCP endpoint that may be used: all of loopback, or any with
    /// `insecure_network`, which is logged as a warning. Empty for a Unix socket.
    ///
    /// # Errors
    /// [`AddressError::NotLoopback`] where `insecure_network` is needed and not given;
    /// [`AddressError::Unresolved`] where the name has no address.
    pub async fn resolve(&self, insecure_network: bool) -> Result<Vec<SocketAddr>, AddressError> {
        let all = self.resolve_anywhere().await?;
        require_loopback_unless(insecure_network, self, &all)?;
        Ok(all)
    }

    /// All socket addresses of a TCP endpoint, wherever they are: for connections over TLS. Empty for a Unix
    /// socket.
    ///
    /// # Errors
    /// [`AddressError::Unresolved`] where the name has no address.
    pub async fn resolve_anywhere(&self) -> Result<Vec<SocketAddr>, AddressError> {
        let Self::Tcp { host, port, .. } = self else { return Ok(Vec::new()) };
        let unresolved = |source| AddressError::Unresolved { address: self.to_string(), source };
        let all: Vec<SocketAddr> =
            tokio::net::lookup_host((host.as_str(), *port)).await.map_err(unresolved)?.collect();
        if all.is_empty() {
            return Err(unresolved(std::io::Error::other("the name has no address")));
        }
        Ok(all)
    }
}

/// Refuses `address` when it resolves to any address beyond this machine's loopback. With `insecure_network` it is
/// allowed, and a warning about clear text is logged once in a process.
///
/// # Errors
/// [`AddressError::NotLoopback`].
pub fn require_loopback_unless(
    insecure_network: bool,
    address: &Address,
    resolved: &[SocketAddr],
) -> Result<(), AddressError> {
    if are_loopback(resolved) {
        return Ok(());
    }
    if !insecure_network {
        return Err(AddressError::NotLoopback { address: address.to_string() });
    }
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        tracing::warn!(
            first = %address,
            "--insecure-network: prompts, activations and weights cross the network unencrypted, \
             and anyone who reaches an address beyond this machine can use it"
        );
    });
    Ok(())
}

/// Whether all of these addresses are on this machine's loopback.
pub fn are_loopback(resolved: &[SocketAddr]) -> bool {
    resolved.iter().all(|a| a.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_they_were_written() {
        for text in [
            "127.0.0.1:80",
            "[::1]:9000",
            "node-1.example:1",
            "unix:/run/b.sock",
            "lab:1/2",
            "[::1]:9/64",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        for text in [
            "",
            "host",
            ":1",
            "host:",
            "host:70000",
            "[::1:9",
            "[x]:1",
            "a b:1",
            "unix:",
            "a:1/",
            "a:1/0",
            "a:1/65",
            "a:1/02",
            "a:1/+2",
            "a:1/2/3",
            "a/2",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_first_stage_of_an_address_is_the_one_without_a_number() {
        let at = |text: &str| text.parse::<Address>().unwrap();
        assert_eq!(at("lab:1/1"), at("lab:1"));
        assert_ne!(at("lab:1/2"), at("lab:1"));
        assert_eq!(at("lab:1").of_stage(2), at("lab:1/2"));
    }

    #[test]
    fn beyond_loopback_needs_permission() {
        let check = |text: &str, insecure| {
            let socket: SocketAddr = text.parse().unwrap();
            require_loopback_unless(insecure, &Address::from(socket), &[socket]).is_ok()
        };
        for local in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(check(local, false), "{local}");
        }
        for remote in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[2001:db8::1]:1"] {
            assert!(!check(remote, false), "{remote}");
            assert!(check(remote, true), "{remote}");
        }
    }
}
