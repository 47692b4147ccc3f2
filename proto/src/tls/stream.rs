//! A connection between processes: a socket, plain or under TLS, that knows its peer and can be ended from outside.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, BufReader, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::credentials::Credentials;
use super::hangup::Hangup;
use super::party::Who;
use super::server_name::{TLS_BEGINS, server_name};
use super::verify::{Expected, who_of};
use super::{Revoked, TlsError};

/// Bytes that wait to be encrypted or sent: a whole HTTP/2 frame of ours.
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes that are read off a socket at once: rustls alone asks for 4 KiB at a time.
const READ_BYTES: usize = 64 << 10;
/// Bytes of a server's first words (its HTTP/2 settings) that are read at once.
const FIRST_WORDS: usize = 1024;

/// A socket of either kind.
#[derive(Debug)]
pub struct Socket {
    kind: Kind,
    /// A byte that was read to see what begins, and is read again.
    first: Option<u8>,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Self {
        Self { kind: Kind::Tcp(stream), first: None }
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        Self { kind: Kind::Unix(stream), first: None }
    }
}

impl Socket {
    /// Address of the other end; `None` on a Unix socket.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn peer_ip(&self) -> io::Result<Option<std::net::IpAddr>> {
        match &self.kind {
            Kind::Tcp(tcp) => Ok(Some(tcp.peer_addr()?.ip())),
            Kind::Unix(_) => Ok(None),
        }
    }

    /// Whether its peer begins with TLS.
    async fn begins_tls(&mut self) -> io::Result<bool> {
        let byte = self.read_u8().await?;
        self.first = Some(byte);
        Ok(byte == TLS_BEGINS)
    }
}

macro_rules! each_kind {
    ($socket:expr, $stream:ident => $call:expr) => {
        match &mut $socket.kind {
            Kind::Tcp($stream) => $call,
            Kind::Unix($stream) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buf.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        each_kind!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each_kind!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each_kind!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each_kind!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each_kind!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

/// How a listener takes connections.
#[derive(Clone, Debug)]
pub struct Offer {
    tls: Option<(Arc<ServerConfig>, Arc<Revoked>)>,
    plain: bool,
}

impl Offer {
    /// An offer of plain connections only.
    pub fn plain() -> Self {
        Self { tls: None, plain: true }
    }

    /// TLS, and beside it `plain` connections or none.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn tls(credentials: &Credentials, plain: bool) -> Result<Self, TlsError> {
        Ok(Self { tls: Some((credentials.server()?, credentials.revoked().clone())), plain })
    }

    /// Whether a connection needs nothing before it is used.
    pub(crate) fn is_plain_only(&self) -> bool {
        self.tls.is_none()
    }

    /// Finds out what a connection that came in speaks, and who is at its other end.
    ///
    /// # Errors
    /// The peer does not speak what is offered, or is not believed.
    pub(crate) async fn accept(
        &self,
        mut socket: Socket,
        hangup: Arc<Hangup>,
    ) -> io::Result<Transport> {
        let Some((config, revoked)) = &self.tls else {
            return Ok(Transport::plain(socket, hangup));
        };
        if self.plain && !socket.begins_tls().await? {
            return Ok(Transport::plain(socket, hangup));
        }
        let acceptor = TlsAcceptor::from(config.clone());
        let stream = acceptor
            .accept_with(BufReader::with_capacity(READ_BYTES, socket), |c| {
                c.set_buffer_limit(Some(BUFFER_BYTES))
            })
            .await?;
        Transport::over(TlsStream::from(stream), revoked, hangup)
    }
}

/// How a process dials.
#[derive(Clone, Debug)]
pub struct Dialling {
    config: Arc<ClientConfig>,
    /// Of the stage, or in place of a name, which plays no other part.
    name: ServerName<'static>,
    revoked: Arc<Revoked>,
}

impl Dialling {
    /// Prepares to dial the peer `expected`, which is stage `stage` of its node, with these credentials.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(credentials: &Credentials, expected: Expected, stage: u8) -> Result<Self, TlsError> {
        let (name, is_sent) = server_name(stage)?;
        let (config, revoked) = (credentials.client(expected, is_sent)?, credentials.revoked());
        Ok(Self { config, name, revoked: revoked.clone() })
    }

    /// Performs the TLS handshake over an open connection, and waits for the server's first bytes, which alone prove
    /// that it accepts our certificate.
    ///
    /// # Errors
    /// The peer does not speak TLS, or one side refuses the other's certificate.
    pub(crate) async fn connect(&self, socket: Socket) -> io::Result<Transport> {
        let connector = TlsConnector::from(self.config.clone());
        let limit = |c: &mut rustls::ClientConnection| c.set_buffer_limit(Some(BUFFER_BYTES));
        let name = self.name.clone();
        let stream = connector
            .connect_with(name, BufReader::with_capacity(READ_BYTES, socket), limit)
            .await?;
        let mut transport =
            Transport::over(TlsStream::from(stream), &self.revoked, Arc::default())?;
        let mut words = BytesMut::with_capacity(FIRST_WORDS);
        if transport.read_buf(&mut words).await? == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        transport.early = words;
        Ok(transport)
    }
}

/// A connection that can be used.
#[derive(Debug)]
pub struct Transport {
    stream: Layer,
    who: Who,
    /// Bytes that were read before the caller asked for them.
    early: BytesMut,
    hangup: Arc<Hangup>,
}

#[derive(Debug)]
enum Layer {
    Plain(Socket),
    Tls(Box<TlsStream<BufReader<Socket>>>),
}

impl Transport {
    /// A plain connection over a socket.
    pub(crate) fn plain(socket: Socket, hangup: Arc<Hangup>) -> Self {
        let (stream, who) = (Layer::Plain(socket), Who::Anybody);
        Self { stream, who, early: BytesMut::new(), hangup }
    }

    fn over(
        stream: TlsStream<BufReader<Socket>>,
        revoked: &Revoked,
        hangup: Arc<Hangup>,
    ) -> io::Result<Self> {
        let shown = stream.get_ref().1.peer_certificates().and_then(<[CertificateDer<'_>]>::first);
        let who = shown.and_then(who_of);
        let who = who.ok_or_else(|| io::Error::other("its key is not a P-256 key"))?;
        if let Some(party) = who.party()
            && !revoked.watch(party, &hangup)
        {
            return Err(io::Error::other("its certificate was revoked"));
        }
        Ok(Self { stream: Layer::Tls(Box::new(stream)), who, early: BytesMut::new(), hangup })
    }

    /// The peer at the other end.
    pub fn who(&self) -> &Who {
        &self.who
    }
}

macro_rules! each_layer {
    ($transport:expr, $stream:ident => $call:expr) => {
        match &mut $transport.stream {
            Layer::Plain($stream) => $call,
            Layer::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.has_remaining() {
            let n = self.early.len().min(buf.remaining());
            buf.put_slice(&self.early.split_to(n));
            return Poll::Ready(Ok(()));
        }
        let read = each_layer!(self, stream => Pin::new(stream).poll_read(cx, buf));
        if read.is_pending() {
            self.hangup.wake(cx);
        }
        if self.hangup.is_made() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each_layer!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each_layer!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each_layer!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each_layer!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Layer::Plain(stream) => stream.is_write_vectored(),
            Layer::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
