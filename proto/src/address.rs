//! Addresses of processes: `HOST:PORT` or `unix:PATH`. This module also has the rule that nothing beyond this machine
//! is bound or dialled unless the user allows it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Once;

use crate::limits::MAX_NAME_BYTES;

const UNIX_PREFIX: &str = "unix:";

/// Where a process listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP endpoint; the host is a name or an IP address (IPv6 in brackets).
    Tcp {
        /// The host, an IPv6 address without brackets.
        host: String,
        /// Port; 0 asks for any when binding.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Why an address was refused.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The text is not an address.
    #[error("\"{text}\" is not an address: write HOST:PORT, [IPV6]:PORT or unix:PATH")]
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
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp { host: addr.ip().to_string(), port: addr.port() }
    }
}

impl Address {
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
        let Self::Tcp { host, port } = self else { return Ok(Vec::new()) };
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
        for text in ["127.0.0.1:80", "[::1]:9000", "node-1.example:1", "unix:/run/b.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        for text in ["", "host", ":1", "host:", "host:70000", "[::1:9", "[x]:1", "a b:1", "unix:"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
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
