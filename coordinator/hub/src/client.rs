//! The HTTP client for hubs, registries and other hosts. Redirects are followed by hand: the token goes to the hub
//! itself and to no second host, and each step is checked ([`super::guard`]).

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use ureq::http::{HeaderMap, StatusCode, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Proxy};

use super::error::HubError;
use super::guard::{Guard, PrivateAddress, port_of};
use super::name::without_query;
use super::settings::Settings;

/// Redirects that are followed.
const MAX_REDIRECTS: u32 = 5;

/// Tries of a request that is refused for the moment, or whose connection breaks.
const MAX_TRIES: u32 = 5;

/// The pause before the second try where the server names none; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// The longest pause that a server may ask for; one that wants more is told to the user.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// Most bytes of an answer's head.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Most bytes of an error's text that are shown.
const MAX_SHOWN_BYTES: u64 = 300;

/// How long a name may take to resolve, and a connection to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// How long a server may take until it answers, and between two pieces of what it sends.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// An answer with its body still to be read.
pub struct Answer {
    /// The requested address, without its query.
    pub url: String,
    /// The address that answered in the end: it may be signed, and stands in no log.
    pub at: String,
    /// The HTTP status.
    pub status: u16,
    /// The response headers.
    pub head: HeaderMap,
    /// Head of the first answer, before any redirect: what the hub itself says about a file.
    pub first: HeaderMap,
    /// The body, unread.
    pub body: Body,
}

/// The range of a file that is requested.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part<'a> {
    /// The first byte.
    pub from: u64,
    /// The end of the range, not included; `None`: the end of the file.
    pub until: Option<u64>,
    /// The state that the file must still be in; otherwise all of it comes.
    pub etag: Option<&'a str>,
}

/// Asks hubs, registries and other hosts.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    guard: Guard,
    endpoint: Option<Uri>,
    token: Option<String>,
}

impl Client {
    /// A client with these settings. `named`: hosts inside this network that the operator has named besides.
    ///
    /// # Errors
    /// The named certificates cannot be read.
    pub fn new(settings: &Settings, named: &[&str]) -> Result<Self, HubError> {
        let endpoint: Option<Uri> = settings.endpoint.parse().ok();
        let of_address = |address: &str| {
            let uri: Uri = address.parse().ok()?;
            Some(format!("{}:{}", uri.host()?, port_of(&uri)))
        };
        let mut hosts = settings.private_hosts.clone();
        let addresses = named.iter().copied().chain([settings.endpoint.as_str()]);
        hosts.extend(addresses.filter_map(of_address));
        let mut tls = TlsConfig::builder();
        if let Some(path) = &settings.certificates {
            let pem = std::fs::read(path).map_err(HubError::io("read", path))?;
            let found = parse_pem(&pem).filter_map(|item| match item {
                Ok(PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            });
            let found: Vec<Certificate<'static>> = found.collect();
            if found.is_empty() {
                let source = std::io::Error::other(
                    "SSL_CERT_FILE names it, and there is no certificate in it",
                );
                return Err(HubError::io("use", path)(source));
            }
            tls = tls.root_certs(RootCerts::new_with_certs(&found));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(MAX_HEAD_BYTES)
            .accept_encoding("identity")
            .user_agent(concat!("brigade/", env!("CARGO_PKG_VERSION")))
            .proxy(Proxy::try_from_env())
            .tls_config(tls.build())
            .timeout_resolve(Some(CONNECT_WITHIN))
            .timeout_connect(Some(CONNECT_WITHIN))
            .timeout_recv_response(Some(ANSWER_WITHIN))
            .timeout_per_read(Some(ANSWER_WITHIN))
            .build();
        let agent =
            Agent::with_parts(config, DefaultConnector::default(), Guard::new(hosts.clone()));
        Ok(Self { agent, guard: Guard::new(hosts), endpoint, token: settings.token.clone() })
    }

    /// A client without token and hub: it reaches the internet, and these hosts.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn without_token(private_hosts: Vec<String>) -> Result<Self, HubError> {
        let env = |name: &str| std::env::var(name).ok();
        let settings = Settings::from_env(PathBuf::new(), PathBuf::new(), &env);
        Self::new(
            &Settings { token: None, endpoint: String::new(), private_hosts, ..settings },
            &[],
        )
    }

    /// Hosts that the operator has named, by settings and by names of models.
    pub fn named(&self) -> &[String] {
        self.guard.named()
    }

    /// Whether an address is of the hub that has our token.
    pub fn is_ours(&self, address: &str) -> bool {
        let uri: Option<Uri> = address.parse().ok();
        let is_hub = uri
            .zip(self.endpoint.as_ref())
            .is_some_and(|(uri, endpoint)| same_origin(&uri, endpoint));
        is_hub && self.token.is_some()
    }

    /// Sends a GET request. Waits and asks again where the server is busy or the connection breaks before an answer.
    ///
    /// # Errors
    /// There is no answer, or its address is not allowed. Any status but 429 and 5xx is an answer.
    pub fn get(&self, url: &str, part: Part<'_>) -> Result<Answer, HubError> {
        let (mut tries, mut pause) = (0, FIRST_PAUSE);
        loop {
            tries += 1;
            let outcome = self.follow(url, part);
            let wait = match &outcome {
                Ok(answer) if is_busy(answer.status) => retry_after(&answer.head).unwrap_or(pause),
                Err(HubError::Broken { .. }) => pause,
                _ => return outcome,
            };
            if tries == MAX_TRIES || wait > LONGEST_PAUSE {
                return outcome.and_then(|answer| Err(busy(&answer, tries, wait)));
            }
            tracing::info!(
                url = without_query(url),
                ?wait,
                "a request failed or was put off: it is sent again after this time"
            );
            thread::sleep(wait);
            pause *= 2;
        }
    }

    /// Sends one request, and follows its redirects.
    fn follow(&self, url: &str, part: Part<'_>) -> Result<Answer, HubError> {
        let (mut at, mut first) = (url.to_string(), None);
        for _ in 0..=MAX_REDIRECTS {
            let (status, head, body) = self.ask(&at, part)?;
            let first_head = first.get_or_insert_with(|| head.clone());
            let location = head.get("location").and_then(|value| value.to_str().ok());
            match location.filter(|_| (300..400).contains(&status) && status != 304) {
                Some(location) => at = next(&at, location)?,
                None => {
                    let (url, first) = (without_query(url).to_string(), first_head.clone());
                    return Ok(Answer { url, at, status, head, first, body });
                }
            }
        }
        let (url, to) = (without_query(url).to_string(), without_query(&at).to_string());
        Err(HubError::Redirect {
            url,
            to,
            why: format!("that is more than {MAX_REDIRECTS} redirects"),
        })
    }

    fn ask(&self, at: &str, part: Part<'_>) -> Result<(u16, HeaderMap, Body), HubError> {
        let broken = |why: String| HubError::Broken { url: without_query(at).to_string(), why };
        let uri: Uri = at.parse().map_err(|_| broken("it is not a valid address".to_string()))?;
        self.guard.check_written(&uri).map_err(private)?;
        let mut request = self.agent.get(at);
        if let (Some(token), true) =
            (&self.token, self.endpoint.as_ref().is_some_and(|e| same_origin(e, &uri)))
        {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if part.from > 0 || part.until.is_some() {
            let last =
                part.until.map_or(String::new(), |until| until.saturating_sub(1).to_string());
            request = request.header("range", format!("bytes={}-{last}", part.from));
            if let Some(etag) = part.etag {
                request = request.header("if-range", etag);
            }
        }
        let answer = request.call().map_err(|error| match error {
            ureq::Error::Other(other) => match other.downcast::<PrivateAddress>() {
                Ok(address) => private(*address),
                Err(other) => broken(other.to_string()),
            },
            other => broken(other.to_string()),
        })?;
        let (head, body) = answer.into_parts();
        Ok((head.status.as_u16(), head.headers, body))
    }
}

/// The next address of a redirect. An encrypted connection is not left for a plain one.
fn next(at: &str, location: &str) -> Result<String, HubError> {
    let refused = |why: &str| {
        let (url, to) = (without_query(at).to_string(), without_query(location).to_string());
        HubError::Redirect { url, to, why: why.to_string() }
    };
    let from: Uri = at.parse().map_err(|_| refused("it is not a valid address"))?;
    let (scheme, authority) = match (from.scheme_str(), from.authority()) {
        (Some(scheme), Some(authority)) => (scheme, authority),
        _ => return Err(refused("it is not a valid address")),
    };
    let to = match location {
        here if here.starts_with("//") => format!("{scheme}:{here}"),
        here if here.starts_with('/') => format!("{scheme}://{authority}{here}"),
        there => there.to_string(),
    };
    let next: Uri = to.parse().map_err(|_| refused("that is not a valid address"))?;
    match (scheme, next.scheme_str()) {
        ("https", Some("https")) | ("http", Some("http" | "https")) => Ok(to),
        ("https", Some("http")) => Err(refused("that is not encrypted any more")),
        _ => Err(refused("that is neither http nor https")),
    }
}

/// Whether two addresses have scheme, host and port in common.
pub fn same_origin(a: &Uri, b: &Uri) -> bool {
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    a.scheme_str() == b.scheme_str() && host(a) == host(b) && port_of(a) == port_of(b)
}

fn private(address: PrivateAddress) -> HubError {
    HubError::Private { host: address.host, address: address.address.to_string() }
}

fn is_busy(status: u16) -> bool {
    matches!(status, 429 | 500 | 502 | 503 | 504)
}

fn busy(answer: &Answer, tries: u32, wait: Duration) -> HubError {
    let (url, status) = (answer.url.clone(), answer.status);
    match status {
        429 | 503 => HubError::Busy { url, status, tries, wait_s: wait.as_secs().max(1) },
        _ => HubError::Status {
            url,
            status,
            text: format!("it failed {tries} times; try again later"),
        },
    }
}

fn retry_after(head: &HeaderMap) -> Option<Duration> {
    text(head, "retry-after")?.trim().parse().ok().map(Duration::from_secs)
}

/// A field of a head, where it is text.
pub fn text<'a>(head: &'a HeaderMap, name: &str) -> Option<&'a str> {
    head.get(name).and_then(|value| value.to_str().ok())
}

impl Answer {
    /// Whether it is of this status.
    pub fn is(&self, status: StatusCode) -> bool {
        self.status == status.as_u16()
    }

    /// The body as text, of at most `limit` bytes.
    ///
    /// # Errors
    /// The body is longer, is no UTF-8, or breaks off.
    pub fn text(&mut self, limit: u64) -> Result<String, HubError> {
        let read = self.body.with_config().limit(limit).read_to_string();
        read.map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(_) => HubError::Malformed {
                url: self.url.clone(),
                what: "answer",
                why: format!("it is longer than {limit} bytes"),
            },
            other => HubError::Broken { url: self.url.clone(), why: other.to_string() },
        })
    }

    /// The beginning of an error's text, as far as messages show it.
    pub fn said(&mut self) -> String {
        if let Some(message) = text(&self.head, "x-error-message") {
            return message.chars().take(MAX_SHOWN_BYTES as usize).collect();
        }
        let is_page =
            text(&self.head, "content-type").is_some_and(|ty| ty.starts_with("text/html"));
        if is_page { String::new() } else { self.text(MAX_SHOWN_BYTES).unwrap_or_default() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_encrypted() {
        assert_eq!(next("https://a/b", "/c?d").unwrap(), "https://a/c?d");
        assert_eq!(next("https://a/b", "//e/c").unwrap(), "https://e/c");
        assert_eq!(next("http://a/b", "https://e/c").unwrap(), "https://e/c");
        for to in ["http://a/c", "file:///etc/passwd", "ftp://a/c", "c"] {
            let error = next("https://a/b?secret", to).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let same = |a: &str, b: &str| same_origin(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("https://a/x", "https://A:443/y"));
        assert!(
            !same("https://a/", "http://a/")
                && !same("http://a/", "http://a:81/")
                && !same("https://a/", "https://b/")
        );
    }
}
