//! The destination of requests: a server, or the handlers of this process. Both are asked the same way.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use axum::http::uri::Scheme;
use axum::http::{Request, Response, Uri};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tower::ServiceExt;

use super::events;

/// A server that cannot be reached within this is not there.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Longest answer that is no stream: a list of models, an error.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// Where systems keep the authorities that they trust.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The destination of requests.
pub enum Door {
    /// The handlers of this process.
    Here(Router),
    /// A server on the network.
    There(Box<Server>),
}

/// An OpenAI-compatible server with its address and key.
pub struct Server {
    /// Without `/v1`, and without a slash at the end.
    base: Uri,
    host: String,
    port: u16,
    bearer: Option<HeaderValue>,
    tls: Option<TlsConnector>,
}

impl Server {
    /// Takes an address such as `http://host:8080` or `https://host/v1`.
    ///
    /// # Errors
    /// The text is no such address, the key has characters that no key has, or there are no authorities to trust.
    pub fn new(url: &str, key: Option<&str>, ca: Option<&Path>) -> Result<Self> {
        let hint = || format!("--url {url}: give an address such as http://127.0.0.1:8080");
        let bare = url.trim_end_matches('/');
        let bare = bare.strip_suffix("/v1").unwrap_or(bare);
        let base: Uri = bare.parse().with_context(hint)?;
        let is_tls = match base.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => bail!(hint()),
        };
        let host = base.host().with_context(hint)?.trim_matches(['[', ']']).to_string();
        let port = base.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let bearer = key.map(|key| HeaderValue::from_str(&format!("Bearer {key}"))).transpose();
        let mut bearer =
            bearer.context("--api-key: the key has characters that cannot be sent in a header")?;
        if let Some(bearer) = &mut bearer {
            bearer.set_sensitive(true);
        }
        let tls = is_tls.then(|| trusting(ca)).transpose()?;
        Ok(Self { base, host, port, bearer, tls })
    }

    /// Whether the chat can be read on its way.
    pub fn is_plain_beyond_this_machine(&self) -> bool {
        let ip = self.host.parse::<std::net::IpAddr>();
        let is_here = ip.map_or(self.host == "localhost", |ip| ip.to_canonical().is_loopback());
        self.tls.is_none() && !is_here
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>> {
        let path = format!("{}{}", self.base.path().trim_end_matches('/'), request.uri().path());
        *request.uri_mut() = path.parse().context("the address")?;
        let authority = self.base.authority().map_or(self.host.as_str(), |a| a.as_str());
        request.headers_mut().insert(HOST, HeaderValue::from_str(authority)?);
        if let Some(bearer) = &self.bearer {
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        }
        let connect = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            match &self.tls {
                None => exchange(stream, request).await,
                Some(tls) => {
                    let name = ServerName::try_from(self.host.clone())?;
                    exchange(tls.connect(name, stream).await?, request).await
                }
            }
        };
        connect.await.with_context(|| format!("cannot reach {}", self.base))
    }
}

/// One request on a connection of its own, which ends with its answer.
async fn exchange<S>(stream: S, request: Request<Body>) -> Result<Response<Body>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Its failure is the answer's.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?.map(Body::new))
}

/// Trusts servers whose certificate is signed by an authority in `ca`, or without it by one that the system trusts.
fn trusting(ca: Option<&Path>) -> Result<TlsConnector> {
    let file = match ca {
        Some(file) => file.to_path_buf(),
        None => system_roots().ok_or_else(|| {
            anyhow!("this system has no list of authorities: name the server's with --ca FILE")
        })?,
    };
    let name = file.display();
    let mut roots = RootCertStore::empty();
    let found = CertificateDer::pem_file_iter(&file).with_context(|| format!("cannot read {name}"));
    for certificate in found? {
        let certificate = certificate
            .with_context(|| format!("{name} is not a list of certificates in PEM form"));
        // A system's list may have some that this library does not know; a file that was named may not.
        match roots.add(certificate?) {
            Err(error) if ca.is_some() => bail!("{name}: {error}"),
            _ => {}
        }
    }
    ensure!(!roots.is_empty(), "{name} has no certificates");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn system_roots() -> Option<PathBuf> {
    let said = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    said.or_else(|| SYSTEM_ROOTS.iter().map(PathBuf::from).find(|file| file.exists()))
}

impl Door {
    /// The names under which models are served.
    ///
    /// # Errors
    /// As [`Self::chat`].
    pub async fn models(&self) -> Result<Vec<String>> {
        let request = Request::get("/v1/models").body(Body::empty())?;
        let answer = timeout(CONNECT_WITHIN, self.send(request)).await;
        let answer = answer.map_err(|_| anyhow!("the server does not answer"))??;
        let bytes = to_bytes(answer.into_body(), MAX_ANSWER_BYTES).await?;
        let list: Value = serde_json::from_slice(&bytes).context("its list of models")?;
        let ids = list["data"].as_array().into_iter().flatten();
        Ok(ids.filter_map(|model| model["id"].as_str()).map(str::to_string).collect())
    }

    /// Asks for an answer, as a stream.
    ///
    /// # Errors
    /// There is no such server, or it refuses, in its own words.
    pub async fn chat(&self, body: &Value) -> Result<events::Events> {
        let request = Request::post("/v1/chat/completions")
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream")
            .body(Body::from(body.to_string()))?;
        Ok(events::Events::of(self.send(request).await?.into_body()))
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>> {
        let response = match self {
            Self::Here(router) => match router.clone().oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
            Self::There(server) => server.send(request).await?,
        };
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let bytes = to_bytes(response.into_body(), MAX_ANSWER_BYTES).await.unwrap_or_default();
        let refusal: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        match refusal.get("error") {
            Some(error) => bail!("{}", events::message(error)),
            None => bail!("the server answers {status}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(url: &str) -> Result<Server> {
        Server::new(url, Some("k"), None)
    }

    #[test]
    fn addresses_may_name_the_version() {
        for url in ["http://h:81", "http://h:81/", "http://h:81/v1", "http://h:81/v1/"] {
            let server = server(url).unwrap();
            assert_eq!((server.host.as_str(), server.port, server.base.path()), ("h", 81, "/"));
        }
        let behind = server("http://[::1]/brigade/v1").unwrap();
        assert_eq!((behind.host.as_str(), behind.port), ("::1", 80));
        assert_eq!(behind.base.path(), "/brigade");
        for wrong in ["h:81", "ftp://h", "", "http://"] {
            let error = server(wrong).err().expect("no address of a server").to_string();
            assert!(error.contains("--url"), "{wrong}: {error}");
        }
    }

    #[test]
    fn what_can_be_read_on_the_way_is_known() {
        let plain = |url: &str| server(url).unwrap().is_plain_beyond_this_machine();
        assert!(plain("http://10.0.0.1:8080") && plain("http://example"));
        assert!(!plain("http://127.0.0.1:8080") && !plain("http://[::1]:1"));
        assert!(!plain("http://localhost"));
    }
}
