//! The ways to connect: plain on this machine, over TLS beyond it, or plain everywhere because the user said so.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, UnixStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::transport::Endpoint;
use tower::service_fn;

use super::calls::Connection;
use super::listener::Listener;
use super::{CONNECT_TIMEOUT, NetError, endpoint, with_causes};
use crate::address::{Address, AddressError, FIRST_STAGE, are_loopback};
use crate::tls::Credentials;
use crate::tls::error_text::trouble;
use crate::tls::server_name::plain_line;
use crate::tls::stream::{Dialling, Offer, Socket, Transport};
use crate::tls::verify::Expected;

/// Stands in the place of an address that has been resolved.
const RESOLVED: &str = "http://brigade";

/// How this process speaks with others.
#[derive(Clone, Debug, Default)]
pub struct Network {
    insecure: bool,
    credentials: Option<Arc<Credentials>>,
}

/// How a listener with TLS treats plain connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// Plain connections get no answer.
    Refused,
    /// Plain connections are accepted where they would be without TLS: on this machine, or everywhere with
    /// `--insecure-network`.
    AsEver,
}

impl Network {
    /// Plain connections: on this machine only, or everywhere with `insecure`.
    pub fn plain(insecure: bool) -> Self {
        Self { insecure, credentials: None }
    }

    /// TLS with these credentials, and plain connections where they would be allowed without.
    pub fn with_credentials(credentials: Arc<Credentials>, insecure: bool) -> Self {
        Self { insecure, credentials: Some(credentials) }
    }

    /// The process's credentials, if it speaks TLS.
    pub fn credentials(&self) -> Option<&Arc<Credentials>> {
        self.credentials.as_ref()
    }

    /// Checks that an address can be dialled: it resolves, and is on this machine unless it is dialled over TLS, or
    /// plain everywhere.
    ///
    /// # Errors
    /// [`NetError::Address`]; [`NetError::Refused`] for TLS without credentials.
    pub async fn check(&self, address: &Address, is_tls: bool) -> Result<(), NetError> {
        match (is_tls, &self.credentials) {
            (true, None) => return Err(no_credentials(address)),
            (true, Some(_)) => address.resolve_anywhere().await?,
            (false, _) => address.resolve(self.insecure).await?,
        };
        Ok(())
    }

    /// Binds `address`: for TLS where this process has credentials.
    ///
    /// # Errors
    /// [`NetError::Address`] beyond this machine without credentials and without `--insecure-network`;
    /// [`NetError::Bind`].
    pub async fn bind(&self, address: &Address, plain: Plain) -> Result<Listener, NetError> {
        if address.stage() != FIRST_STAGE {
            return Err(AddressError::NoPlaceOfStage { address: address.to_string() }.into());
        }
        let (resolved, offer) = self.offer(address, plain).await?;
        Listener::on(address, &resolved, offer).await
    }

    /// The same as [`Network::bind`], for a stage of a node: the node listens at `address`, and connections come from it,
    /// accepted.
    ///
    /// # Errors
    /// [`NetError::Address`] beyond this machine without credentials and without `--insecure-network`.
    pub async fn behind(
        &self,
        address: &Address,
        accepted: mpsc::Receiver<std::net::TcpStream>,
        plain: Plain,
    ) -> Result<Listener, NetError> {
        let (_, offer) = self.offer(address, plain).await?;
        Ok(Listener::behind(address, accepted, offer))
    }

    /// What is offered at an address, and what that resolves to.
    async fn offer(
        &self,
        address: &Address,
        plain: Plain,
    ) -> Result<(Vec<SocketAddr>, Offer), NetError> {
        let Some(credentials) = &self.credentials else {
            return Ok((address.resolve(self.insecure).await?, Offer::plain()));
        };
        let resolved = address.resolve_anywhere().await?;
        let is_open = are_loopback(&resolved) || self.insecure;
        let offer = Offer::tls(credentials, plain == Plain::AsEver && is_open)?;
        Ok((resolved, offer))
    }

    /// Connects to `address` over TLS, to the party that is `expected`, or without TLS if this is `None`.
    ///
    /// # Errors
    /// [`NetError::Address`], [`NetError::Dial`], and [`NetError::Refused`] where one of the two does not believe
    /// the other.
    pub async fn dial(
        &self,
        address: &Address,
        expected: Option<Expected>,
    ) -> Result<Connection, NetError> {
        let dialling = match (expected, &self.credentials) {
            (None, _) => None,
            (Some(expected), Some(credentials)) => {
                Some(Dialling::new(credentials, expected, address.stage())?)
            }
            (Some(_), None) => return Err(no_credentials(address)),
        };
        let resolved = match &dialling {
            Some(_) => address.resolve_anywhere().await?,
            None => address.resolve(self.insecure).await?,
        };
        connect(address, targets(address, resolved), dialling).await.map_err(Failed::into_error)
    }

    /// The same as [`Network::dial`], where it is not known whether the peer speaks TLS. With credentials TLS is
    /// tried first; a peer without TLS is dialled plain where that is allowed.
    ///
    /// # Errors
    /// As [`Network::dial`].
    pub async fn dial_either(
        &self,
        address: &Address,
        expected: Expected,
    ) -> Result<Connection, NetError> {
        let Some(credentials) = &self.credentials else { return self.dial(address, None).await };
        let dialling = Dialling::new(credentials, expected, address.stage())?;
        let targets = targets(address, address.resolve_anywhere().await?);
        match connect(address, targets, Some(dialling)).await {
            Err(failed) if failed.is_plain => match self.dial(address, None).await {
                // It would be dialled plain, and must not be: that it speaks no TLS says more.
                Err(NetError::Address(AddressError::NotLoopback { .. })) => {
                    Err(failed.into_error())
                }
                other => other,
            },
            other => other.map_err(Failed::into_error),
        }
    }
}

/// Connects to `address` without TLS: one new connection, established when this returns.
///
/// # Errors
/// [`NetError::Address`] beyond loopback without `insecure_network`; [`NetError::Dial`].
pub async fn dial(address: &Address, insecure_network: bool) -> Result<Connection, NetError> {
    Network::plain(insecure_network).dial(address, None).await
}

fn no_credentials(address: &Address) -> NetError {
    let reason = "it asks for TLS, and this process has no certificate: join it with a token";
    NetError::Refused { address: address.clone(), reason: reason.to_owned() }
}

/// The address by which this machine reaches `peer`. Nothing is sent.
///
/// # Errors
/// [`NetError::Address`] where the name does not resolve; [`NetError::Dial`] where there is no way to it.
pub async fn address_towards(peer: &Address) -> Result<IpAddr, NetError> {
    let no_way =
        |error: io::Error| NetError::Dial { address: peer.clone(), reason: error.to_string() };
    let Some(first) = peer.resolve_anywhere().await?.first().copied() else {
        return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
    };
    let any: IpAddr = match first {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let probe = UdpSocket::bind((any, 0)).await.map_err(no_way)?;
    probe.connect(first).await.map_err(no_way)?;
    Ok(probe.local_addr().map_err(no_way)?.ip())
}

/// The meaning of an address.
#[derive(Clone, Debug)]
enum Target {
    Tcp { address: SocketAddr, stage: u8 },
    Unix(PathBuf),
}

fn targets(address: &Address, resolved: Vec<SocketAddr>) -> Vec<Target> {
    match address {
        Address::Unix(path) => vec![Target::Unix(path.clone())],
        Address::Tcp { stage, .. } => {
            let target = |address| Target::Tcp { address, stage: *stage };
            resolved.into_iter().map(target).collect()
        }
    }
}

impl Target {
    async fn connect(&self, dialling: Option<&Dialling>) -> io::Result<Transport> {
        let open = async {
            let socket: Socket = match self {
                Self::Unix(path) => UnixStream::connect(path).await?.into(),
                Self::Tcp { address, stage } => {
                    let mut stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    if let Some(line) = plain_line(*stage).filter(|_| dialling.is_none()) {
                        stream.write_all(line.as_bytes()).await?;
                    }
                    stream.into()
                }
            };
            match dialling {
                None => Ok(Transport::plain(socket, Arc::default())),
                Some(dialling) => dialling.connect(socket).await,
            }
        };
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
        timeout(CONNECT_TIMEOUT, open).await.map_err(late)?
    }
}

/// Why nothing at an address could be used.
struct Failed {
    address: Address,
    reason: String,
    is_plain: bool,
    is_refusal: bool,
}

impl Failed {
    fn of(address: &Address, error: &(dyn std::error::Error + 'static)) -> Self {
        let address = address.clone();
        match trouble(error) {
            Some(tls) => Self {
                address,
                reason: tls.words,
                is_plain: tls.is_plain,
                is_refusal: tls.is_refusal,
            },
            // A server without TLS may close a connection that it does not understand.
            None => Self {
                address,
                is_plain: closed_by_peer(error),
                is_refusal: false,
                reason: with_causes(error),
            },
        }
    }

    fn into_error(self) -> NetError {
        let Self { address, reason, is_refusal, .. } = self;
        if is_refusal {
            NetError::Refused { address, reason }
        } else {
            NetError::Dial { address, reason }
        }
    }
}

fn closed_by_peer(error: &(dyn std::error::Error + 'static)) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset))
}

async fn connect(
    address: &Address,
    targets: Vec<Target>,
    dialling: Option<Dialling>,
) -> Result<Connection, Failed> {
    let mut failed = Failed::of(address, &io::Error::from(io::ErrorKind::AddrNotAvailable));
    for target in targets {
        match target.connect(dialling.as_ref()).await {
            Ok(transport) => return over(address, target, dialling, transport).await,
            Err(error) => failed = Failed::of(address, &error),
        }
    }
    Err(failed)
}

/// HTTP/2 over a connection that was made. When it is lost, the next call makes another one to the same target.
async fn over(
    address: &Address,
    target: Target,
    dialling: Option<Dialling>,
    transport: Transport,
) -> Result<Connection, Failed> {
    let who = transport.who().clone();
    let made = Arc::new(Mutex::new(Some(transport)));
    let connector = service_fn(move |_| {
        let (target, dialling) = (target.clone(), dialling.clone());
        let made = made.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move {
            match made {
                Some(transport) => Ok(TokioIo::new(transport)),
                None => target.connect(dialling.as_ref()).await.map(TokioIo::new),
            }
        }
    });
    let built = endpoint(Endpoint::from_static(RESOLVED));
    let channel = built.connect_with_connector(connector).await;
    channel.map(|channel| Connection::new(channel, who)).map_err(|e| Failed::of(address, &e))
}
