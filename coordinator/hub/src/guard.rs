//! Restricts the addresses to connect to: public ones, and others only where the operator has named the host.
//!
//! The check is made on the resolved addresses, just before connecting to them. So a name that resolves to an inside
//! address, and a redirect to one, are refused alike.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// An address inside this network, of a host that the operator has not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateAddress {
    /// The host's name.
    pub host: String,
    /// The host's first private address.
    pub address: IpAddr,
}

impl fmt::Display for PrivateAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is at {}", self.host, self.address)
    }
}

impl std::error::Error for PrivateAddress {}

/// Resolves names, and leaves out addresses inside.
#[derive(Debug)]
pub struct Guard {
    inner: DefaultResolver,
    named: Vec<String>,
}

impl Guard {
    /// `named`: `host` or `host:port`, which may be anywhere.
    pub fn new(named: Vec<String>) -> Self {
        Self { inner: DefaultResolver::default(), named }
    }

    /// Hosts that the operator named.
    pub fn named(&self) -> &[String] {
        &self.named
    }

    /// Whether the operator has named the host of this address.
    pub fn is_named(&self, uri: &Uri) -> bool {
        let Some(host) = uri.host() else { return false };
        let with_port = format!("{host}:{}", port_of(uri));
        let is = |named: &String| {
            named.eq_ignore_ascii_case(host) || named.eq_ignore_ascii_case(&with_port)
        };
        self.named.iter().any(is)
    }

    /// Refuses an address that is written in numbers: a proxy would connect to it unseen.
    ///
    /// # Errors
    /// The address is inside, and not named.
    pub fn check_written(&self, uri: &Uri) -> Result<(), PrivateAddress> {
        let host = uri.host().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match bare.parse::<IpAddr>() {
            Ok(address) if !is_public(address) && !self.is_named(uri) => {
                Err(PrivateAddress { host: host.to_string(), address })
            }
            _ => Ok(()),
        }
    }
}

/// The port of an address, said or not.
pub fn port_of(uri: &Uri) -> u16 {
    let usual = if uri.scheme_str() == Some("http") { 80 } else { 443 };
    uri.port_u16().unwrap_or(usual)
}

impl Resolver for Guard {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        // The operator has named the proxy by its variable.
        let is_proxy = config.proxy().is_some_and(|proxy| proxy.uri() == uri);
        let found = self.inner.resolve(uri, config, timeout)?;
        if is_proxy || self.is_named(uri) {
            return Ok(found);
        }
        let mut public = self.empty();
        let all: &[SocketAddr] = &found;
        all.iter().filter(|at| is_public(at.ip())).for_each(|at| public.push(*at));
        match (public.is_empty(), all.first()) {
            (true, Some(first)) => {
                let host = uri.host().unwrap_or_default().to_string();
                Err(ureq::Error::Other(Box::new(PrivateAddress { host, address: first.ip() })))
            }
            _ => Ok(public),
        }
    }
}

/// Whether this is a public address: not of a machine, a local network, a provider's inside, and not reserved.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => match inner_v4(v6) {
            Some(v4) => is_public_v4(v4),
            None => is_public_v6(v6),
        },
    }
}

fn is_public_v4(at: Ipv4Addr) -> bool {
    let [a, b, c, _] = at.octets();
    let inside = at.is_private() || at.is_loopback() || at.is_link_local() || at.is_documentation();
    // 0/8, shared 100.64/10, protocols' 192.0.0/24, benches' 198.18/15, multicast and what is reserved above it.
    let special = a == 0
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (b == 18 || b == 19))
        || a >= 224;
    !inside && !special
}

fn is_public_v6(at: Ipv6Addr) -> bool {
    // All of the internet is in 2000::/3; documentation is 2001:db8::/32.
    let [a, b, ..] = at.segments();
    (a & 0xe000) == 0x2000 && !(a == 0x2001 && b == 0xdb8)
}

/// The address of version 4 that one of version 6 stands for: mapped, translated (64:ff9b::/96), or 6to4.
fn inner_v4(at: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = at.segments();
    let of = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match s {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0, 0xffff, high, low] => {
            Some(of(high, low))
        }
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn only_the_internet_is_public() {
        for at in
            ["1.1.1.1", "18.164.174.17", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
        {
            assert!(is_public(at.parse().unwrap()), "{at}");
        }
        for at in [
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "::127.0.0.1",
            "2001:db8::1",
            "fec0::1",
        ] {
            assert!(!is_public(at.parse().unwrap()), "{at}");
        }
    }

    #[test]
    fn what_is_named_may_be_anywhere() {
        let guard = Guard::new(vec!["127.0.0.1:80".to_string(), "lab".to_string()]);
        let named = |uri: &str| guard.is_named(&uri.parse().unwrap());
        assert!(named("http://127.0.0.1/x") && named("https://LAB:9/x"));
        assert!(
            !named("http://127.0.0.1:81/x")
                && !named("https://127.0.0.1/x")
                && !named("http://lab.evil/")
        );
        let written = |uri: &str| guard.check_written(&uri.parse().unwrap()).is_ok();
        assert!(
            written("http://127.0.0.1/x")
                && written("https://example.com/")
                && written("https://[2606:4700::1]/")
        );
        assert!(
            !written("http://127.0.0.1:22/")
                && !written("http://[::1]/")
                && !written("http://169.254.169.254/")
        );
    }
}
