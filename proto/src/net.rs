//! Connections between brigade's processes: one set of HTTP/2 settings for both ends, and the only places that bind
//! and dial.
//!
//! [`Network`] says how a process connects: plain, or over TLS with its credentials. Control calls, lanes and weights
//! each get a connection of their own (one `dial` each), so that none waits behind another's bytes. A node of several
//! stages has one port ([`front`]), and hands what comes there to its stages ([`handover`]). Limits for peers
//! that are not known yet are in [`admission`] (connections), [`intake`] (messages) and [`calls`] (permitted calls and
//! their sizes).

pub mod admission;
pub mod calls;
pub mod front;
pub mod handover;
pub mod intake;
mod listener;
mod network;

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::{Endpoint, Server};
use tower::layer::util::{Identity, Stack};

pub use self::admission::{Caller, Peer};
pub use self::calls::Connection;
use self::calls::GateLayer;
pub use self::intake::Intake;
pub use self::listener::{Listener, listen_tcp};
pub use self::network::{Network, Plain, address_towards, dial};
use crate::address::{Address, AddressError};
use crate::limits::{MAX_HEADER_BYTES, MAX_STREAMS};
use crate::tls::TlsError;

/// The layers around every service.
pub type ServerLayer = Stack<GateLayer, Identity>;

/// Bytes of an HTTP/2 frame: large enough that a decode boundary is one write, small enough that
/// a heartbeat on the same connection waits for microseconds only.
const HTTP2_FRAME_BYTES: u32 = 256 << 10;
/// Flow control window of a stream: several prefill boundaries. A stranger's call can have this much on its way into
/// the gate, beside the bytes that the gate counts.
pub const STREAM_WINDOW_BYTES: u32 = 16 << 20;
/// Flow control window of a connection; also what the HTTP/2 library's allowance for small frames
/// grows with, which a stream of tokens needs.
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// A silent connection is probed this often ...
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// ... and given up after this long without an answer.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time in which a plain HTTP server answers a plain question.
const HTTP_ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// The probe of an HTTP server. gRPC begins in another way, so its servers close the connection.
const HTTP_QUESTION: &[u8] = b"HEAD / HTTP/1.1\r\nhost: brigade\r\nconnection: close\r\n\r\n";
/// How every answer to it begins.
const HTTP_ANSWER: &[u8] = b"HTTP/1.";

/// Why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The address is malformed or not allowed.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The given address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// No process answers at the address.
    #[error("cannot connect to {address}: {reason}")]
    Dial {
        /// The dialled address.
        address: Address,
        /// The transport's reason, with its causes.
        reason: String,
    },
    /// One side refuses the other's certificate: trying again changes nothing by itself.
    #[error("{address}: {reason}")]
    Refused {
        /// The dialled address.
        address: Address,
        /// Why, and what to do.
        reason: String,
    },
    /// The process's own credentials are invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server stopped with an error.
    #[error("serving on {address} failed: {reason}")]
    Serve {
        /// The address on which it listened.
        address: Address,
        /// The transport's reason, with its causes.
        reason: String,
    },
}

/// A server with the shared settings, to add services to.
pub fn server() -> Server<ServerLayer> {
    Server::builder()
        .layer(GateLayer)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
}

fn endpoint(endpoint: Endpoint) -> Endpoint {
    endpoint
        .max_frame_size(HTTP2_FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
}

/// Whether a plain HTTP server is at `address`, so that an error can name a mixed-up port. It only improves an error
/// message, so any failure means `false`.
pub async fn speaks_http(address: &Address) -> bool {
    let ask = async {
        // The question says nothing that needs to be kept secret.
        let sockets = address.resolve_anywhere().await.ok()?;
        let mut stream = TcpStream::connect(sockets.as_slice()).await.ok()?;
        stream.write_all(HTTP_QUESTION).await.ok()?;
        let mut answer = [0; HTTP_ANSWER.len()];
        stream.read_exact(&mut answer).await.ok()?;
        Some(answer == HTTP_ANSWER)
    };
    tokio::time::timeout(HTTP_ANSWERS_WITHIN, ask).await.ok().flatten().unwrap_or(false)
}

/// An error and its causes in one line; the transport's own text names only the outermost.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}
