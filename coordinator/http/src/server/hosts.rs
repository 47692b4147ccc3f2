//! Host names by which this server may be asked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::server::https::Tls;

/// Longest part of a refused name that is told back.
const MAX_TOLD_CHARS: usize = 100;

/// The domain that multicast DNS adds to a machine's name.
const LOCAL_DOMAIN: &str = "local";

/// Names and addresses by which a listener is asked; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Option<Arc<Known>>);

#[derive(Debug)]
struct Known {
    /// Names in lower case; `*.example.com` stands for one label more, `*` for all.
    names: Vec<String>,
    /// The address on which the server listens.
    address: IpAddr,
    /// The names of its certificate.
    tls: Option<Tls>,
}

impl Hosts {
    /// The names of a listener at `address`, on the machine `machine`, with those of `tls` and `more`.
    pub fn new(address: SocketAddr, machine: &str, tls: Option<Tls>, more: &[String]) -> Self {
        let machine = machine.to_ascii_lowercase();
        let first = machine.split('.').next().unwrap_or(&machine).to_owned();
        let local = format!("{first}.{LOCAL_DOMAIN}");
        let own = ["localhost".to_owned(), machine, first, local];
        let more = more.iter().map(|name| bare(name).to_ascii_lowercase());
        let names = own.into_iter().chain(more).collect();
        Self(Some(Arc::new(Known { names, address: address.ip().to_canonical(), tls })))
    }

    /// The check of requests that do not come over a network: every name passes.
    pub fn of_this_process() -> Self {
        Self(None)
    }

    /// Checks that the request names this server.
    fn check(&self, version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(known) = &self.0 else { return Ok(()) };
        let mut given = headers.get_all(HOST).iter();
        let (host, another) = (given.next(), given.next());
        if another.is_some() {
            return Err(ApiError::bad_request("the request has more than one Host header"));
        }
        // No browser speaks HTTP/1.0.
        if host.is_none() && version == Version::HTTP_11 {
            return Err(ApiError::bad_request("a request of HTTP/1.1 needs a Host header"));
        }
        let named = host.map(|host| host.to_str().ok().and_then(authority).unwrap_or_default());
        let of_target = uri.authority().map(|a| authority(a.as_str()).unwrap_or_default());
        for name in [named, of_target].into_iter().flatten() {
            if !known.has(&name) {
                return Err(refused(&name));
            }
        }
        Ok(())
    }
}

impl Known {
    fn has(&self, name: &str) -> bool {
        if let Ok(ip) = bare(name).parse::<IpAddr>() {
            let ip = ip.to_canonical();
            let listed = || self.names.iter().any(|n| n == "*" || n.parse() == Ok(ip));
            // A listener on all addresses does not know under which addresses it is reached. An address is safe,
            // since it is no name that an attacker could make resolve to this machine.
            return ip.is_loopback()
                || self.address.is_unspecified()
                || ip == self.address
                || listed();
        }
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        if name.is_empty() {
            return false;
        }
        let of_certificate = self.tls.as_ref().map(Tls::names);
        let of_certificate = of_certificate.iter().flat_map(|names| names.iter());
        self.names.iter().chain(of_certificate).any(|known| matches(known, &name))
    }
}

/// Whether a name is `known`, which may begin with a star.
fn matches(known: &str, name: &str) -> bool {
    match known.strip_prefix("*.") {
        None => known == "*" || known.eq_ignore_ascii_case(name),
        Some(domain) => {
            name.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(domain))
        }
    }
}

/// The name in a `Host` header or a target; `None` where it is no `HOST` or `HOST:PORT`.
fn authority(host: &str) -> Option<String> {
    let parsed: Authority = host.parse().ok()?;
    (!host.contains('@')).then(|| name_in(parsed.as_str()).to_owned())
}

/// A host without its port.
fn name_in(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => authority,
    }
}

/// An IPv6 address without its brackets.
fn bare(name: &str) -> &str {
    name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name)
}

fn refused(name: &str) -> ApiError {
    let told: String = name.chars().take(MAX_TOLD_CHARS).collect();
    ApiError::misdirected(format!(
        "this server is not known as {told:?}: ask for it by the address on which it listens, by localhost or by its \
         machine's name; `brigade serve --allow-host NAME` lets it be asked by NAME too"
    ))
}

/// Reads what an operator allows.
///
/// # Errors
/// The text is no name of a host.
pub fn allowed_host(text: &str) -> Result<String, String> {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_fit = text == "*"
        || bare(text).parse::<IpAddr>().is_ok()
        || (!name.is_empty() && name.chars().all(is_name));
    if is_fit {
        Ok(text.trim_end_matches('.').to_owned())
    } else {
        Err("give a name or an address without scheme, port and path, as in chat.example, \
                      *.example or 10.0.0.1; *: any"
            .to_owned())
    }
}

/// Refuses requests that name another server.
pub(crate) async fn layer(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    match hosts.check(request.version(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(hosts: &Hosts, host: &str) -> u16 {
        let headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
        let checked = hosts.check(Version::HTTP_11, &Uri::from_static("/"), &headers);
        checked.map_or_else(|error| error.status().as_u16(), |()| 200)
    }

    fn hosts(address: &str, more: &[&str]) -> Hosts {
        let more: Vec<String> = more.iter().map(|name| (*name).to_owned()).collect();
        Hosts::new(address.parse().unwrap(), "Lab.home.arpa", None, &more)
    }

    #[test]
    fn names_of_this_machine_are_answered_and_no_others() {
        let here = hosts("127.0.0.1:8080", &[]);
        for yes in [
            "127.0.0.1:8080",
            "127.0.0.1",
            "localhost:9",
            "LOCALHOST.",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
            "lab",
            "lab.local:8080",
            "lab.home.arpa",
        ] {
            assert_eq!(status(&here, yes), 200, "{yes}");
        }
        for no in [
            "attacker.example:8080",
            "localhost.attacker.example",
            "127.0.0.1.attacker.example",
            "attacker.localhost",
            "attacker.lab.home.arpa",
            "10.0.0.1",
            "8.8.8.8:8080",
            "0.0.0.0:8080",
            "[2001:db8::1]",
            "2130706433",
            "localhost@attacker.example",
            "attacker.example@localhost",
            "localhost:8080/",
            "localhost, attacker.example",
            "",
            ".",
            ":8080",
            "*",
        ] {
            assert_eq!(status(&here, no), 421, "{no}");
        }
    }

    #[test]
    fn what_is_allowed_is_answered_too() {
        let proxied = hosts("10.0.0.1:80", &["Chat.example", "*.lab.example", "10.9.9.9"]);
        for yes in ["10.0.0.1", "chat.example:443", "a.lab.example", "10.9.9.9:8080", "localhost"] {
            assert_eq!(status(&proxied, yes), 200, "{yes}");
        }
        for no in ["a.chat.example", "lab.example", "b.a.lab.example", "10.0.0.2"] {
            assert_eq!(status(&proxied, no), 421, "{no}");
        }
        let everywhere = hosts("[::]:80", &[]);
        assert_eq!(status(&everywhere, "192.0.2.7:80"), 200, "it listens there");
        assert_eq!(status(&everywhere, "attacker.example"), 421);
        assert_eq!(status(&hosts("127.0.0.1:80", &["*"]), "attacker.example"), 200);
        for good in ["*", "*.example", "a.example.", "10.0.0.1", "[::1]", "my_host"] {
            assert!(allowed_host(good).is_ok(), "{good}");
        }
        for bad in ["", "http://a.example", "a.example:80", "a/b", "*.", "a*"] {
            assert!(allowed_host(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_request_names_one_host_and_its_target_no_other() {
        let here = hosts("127.0.0.1:8080", &[]);
        let two: HeaderMap =
            [(HOST, "localhost".parse().unwrap()), (HOST, "localhost".parse().unwrap())]
                .into_iter()
                .fold(HeaderMap::new(), |mut all, (name, value)| {
                    all.append(name, value);
                    all
                });
        let check = |version, uri: &'static str, headers: &HeaderMap| {
            let checked = here.check(version, &Uri::from_static(uri), headers);
            checked.map_or_else(|error| error.status().as_u16(), |()| 200)
        };
        assert_eq!(check(Version::HTTP_11, "/", &two), 400);
        let (none, mut one) = (HeaderMap::new(), two);
        one.insert(HOST, "localhost".parse().unwrap());
        assert_eq!(check(Version::HTTP_11, "/", &none), 400);
        assert_eq!(check(Version::HTTP_10, "/", &none), 200);
        assert_eq!(check(Version::HTTP_11, "http://attacker.example/health", &one), 421);
        assert_eq!(check(Version::HTTP_11, "http://attacker.example@localhost/", &one), 421);
        assert_eq!(check(Version::HTTP_11, "http://localhost:8080/health", &one), 200);
    }
}
