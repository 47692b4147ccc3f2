//! A bound socket, and serving on it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::server::{Router, TcpIncoming};

use super::admission::Entrance;
use super::{NetError, ServerLayer, with_causes};
use crate::address::Address;
use crate::tls::stream::Offer;

/// Connections that the kernel keeps until they are accepted; Linux allows as many. A client that finds no room tries
/// again after a second. With the usual 128, clients that came with a crowd had to wait that long.
const BACKLOG: u32 = 4096;

/// A bound socket that serves nothing yet.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    incoming: Incoming,
    offer: Offer,
}

#[derive(Debug)]
enum Incoming {
    Tcp(TcpIncoming),
    Handed(mpsc::Receiver<std::net::TcpStream>),
    Unix(UnixListenerStream, RemoveOnDrop),
}

impl Listener {
    /// Binds `address` for plain connections; port 0 takes a free one.
    ///
    /// # Errors
    /// [`NetError::Address`] beyond loopback without `insecure_network`; [`NetError::Bind`].
    pub async fn bind(address: &Address, insecure_network: bool) -> Result<Self, NetError> {
        let resolved = address.resolve(insecure_network).await?;
        Self::on(address, &resolved, Offer::plain()).await
    }

    /// Binds `address`, which is `resolved` unless it is a Unix socket, for what is offered.
    pub(super) async fn on(
        address: &Address,
        resolved: &[SocketAddr],
        offer: Offer,
    ) -> Result<Self, NetError> {
        let failed = |source| NetError::Bind { address: address.clone(), source };
        if let Address::Unix(path) = address {
            let listener = bind_unix(path).map_err(failed)?;
            let remove = RemoveOnDrop(path.clone());
            let incoming = Incoming::Unix(UnixListenerStream::new(listener), remove);
            return Ok(Self { address: address.clone(), incoming, offer });
        }
        let listener = listen_tcp(resolved).map_err(failed)?;
        let address = Address::from(listener.local_addr().map_err(failed)?);
        // The server's own no-delay setting does not reach connections it did not accept itself.
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        Ok(Self { address, incoming: Incoming::Tcp(incoming), offer })
    }

    /// Connections that a node accepts at `address` and hands over, for what is offered.
    pub(super) fn behind(
        address: &Address,
        accepted: mpsc::Receiver<std::net::TcpStream>,
        offer: Offer,
    ) -> Self {
        Self { address: address.clone(), incoming: Incoming::Handed(accepted), offer }
    }

    /// Where it listens, with the real port.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Serves until `shutdown` is ready and open calls have ended.
    ///
    /// # Errors
    /// [`NetError::Serve`].
    pub async fn serve(
        self,
        router: Router<ServerLayer>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), NetError> {
        let offer = self.offer;
        let served = match self.incoming {
            Incoming::Tcp(tcp) => {
                router.serve_with_incoming_shutdown(Entrance::new(tcp, offer), shutdown).await
            }
            Incoming::Handed(accepted) => {
                let handed = ReceiverStream::new(accepted).map(in_this_runtime);
                // A node that is gone ends the process in order, and not this server alone.
                let handed = handed.chain(tokio_stream::pending());
                router.serve_with_incoming_shutdown(Entrance::new(handed, offer), shutdown).await
            }
            Incoming::Unix(unix, _remove) => {
                router.serve_with_incoming_shutdown(Entrance::new(unix, offer), shutdown).await
            }
        };
        let address = self.address;
        served.map_err(|error| NetError::Serve { address, reason: with_causes(&error) })
    }
}

/// A connection that another process has accepted.
fn in_this_runtime(accepted: std::net::TcpStream) -> io::Result<TcpStream> {
    accepted.set_nonblocking(true)?;
    let stream = TcpStream::from_std(accepted)?;
    // One that its peer has left is noticed when it is read.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Listens on the first of `addresses` that can be had; port 0 takes a free one. Has to be called within a
/// runtime. Many may connect at once: up to 4096 wait to be accepted.
///
/// # Errors
/// The error of the last address, or that there is none.
pub fn listen_tcp(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let mut why = io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on");
    for address in addresses {
        match listen_on(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn listen_on(address: &SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted server gets its port although old connections have not quite ended. On Windows this would
    // share a port that is in use.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(*address)?;
    socket.listen(BACKLOG)
}

/// Binds a Unix socket, replacing one that a dead process left behind.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let answer = std::os::unix::net::UnixStream::connect(path);
            if !answer.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

#[derive(Debug)]
struct RemoveOnDrop(PathBuf);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        // A failure leaves a stale socket, which the next bind replaces.
        let _ = std::fs::remove_file(&self.0);
    }
}
