//! Connections of clients: accepted, served with HTTP/1.1 and keep-alive, plain or in TLS, and ended in order.
//!
//! A client that does not complete its request, or does not read its answer, is disconnected after a timeout. The
//! error names it. Where there are too many connections, one that has shown little is closed
//! ([`connections`](crate::clients::connections)).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use brigade_line::keys::Ticket;
use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::answer::sent_body::Answer;
use crate::clients::connections::{Connections, Host, Peer};
use crate::clients::shares::Part;
use crate::clients::usage::Line;
use crate::server::https::Tls;
use crate::server::socket::Patient;
use crate::server::strict::Strict;

/// Limit of the time for the head of a request, from the connection's start or the last answer's end. A connection
/// that idles or trickles longer is closed.
pub const HEAD_WITHIN: Duration = Duration::from_secs(60);

/// How long a client may leave its answer unread, or nearly so ([`crate::server::socket::PACE_BYTES`]).
pub const ANSWER_STALL: Duration = Duration::from_secs(60);

/// Connections at once, or more where more requests may run and wait. A process may often open 1024 files.
pub const MAX_CONNECTIONS: usize = 512;

/// The divisor for the connections of one address, unless the operator says otherwise: half, so that none takes all.
const SHARE_OF_ADDRESS: usize = 2;

/// How long the handshake of TLS may take.
pub const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// Connections beyond those whose requests run or wait, for health checks, metrics and refusals.
const SPARE_CONNECTIONS: usize = 128;

/// Largest head of a request; as much is read ahead of a body.
pub const MAX_HEAD_BYTES: usize = 64 << 10;

/// How long a connection lives on at the server's end that has not sent a whole request.
pub const HALF_SENT_GRACE: Duration = Duration::from_millis(500);

/// The answer to a client that connects when all connections are busy.
const CROWDED: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-length: 0\r\n\
    connection: close\r\n\r\n";

/// Limits of a listener's connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections that may be open at once.
    pub connections: usize,
    /// Connections from one address at once.
    pub of_address: usize,
    /// Limit of the time for a request's head.
    pub head_within: Duration,
    /// Limit of the time in which a client does not read.
    pub answer_stall: Duration,
}

impl ConnectionLimits {
    /// The limits of a server where `requests` may run and wait.
    pub fn of_server(requests: usize) -> Self {
        let connections = MAX_CONNECTIONS.max(requests.saturating_add(SPARE_CONNECTIONS));
        Self {
            connections,
            of_address: connections / SHARE_OF_ADDRESS,
            head_within: HEAD_WITHIN,
            answer_stall: ANSWER_STALL,
        }
    }
}

/// A request that is being answered; its end makes the peer quiet again.
#[derive(Debug)]
pub(crate) struct Answering(Arc<Peer>);

/// Guards that live as long as an answer. They mark its peer as busy, hold back its log line, and count it for its
/// key.
type Kept = (Answering, Option<Arc<Line>>, Option<Arc<Part>>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.is_answered();
    }
}

/// State that all connections of a listener share.
#[derive(Clone, Debug)]
struct Door {
    router: Router,
    tls: Option<Tls>,
    stop: CancellationToken,
    limits: ConnectionLimits,
}

/// Serves until `stop`, then until the answers that run have ended; in TLS if there is a certificate.
pub async fn serve(
    mut listener: TcpListener,
    router: Router,
    tls: Option<Tls>,
    stop: CancellationToken,
    limits: ConnectionLimits,
) {
    let mut connections = JoinSet::new();
    let mut open = Connections::new(limits.connections, limits.of_address);
    let door = Door { router, tls, stop, limits };
    loop {
        tokio::select! {
            () = door.stop.cancelled() => break,
            Some(ended) = connections.join_next_with_id() => {
                open.remove(ended.map_or_else(|error| error.id(), |(id, ())| id));
            }
            (stream, address) = Listener::accept(&mut listener) => {
                let host = Host::of(address.ip());
                if !open.make_place(host) {
                    refuse(&stream, address, door.tls.is_some());
                    continue;
                }
                let peer = Arc::new(Peer::new());
                let handle = connections.spawn(connection(stream, door.clone(), peer.clone()));
                open.insert(host, peer, handle);
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

fn refuse(stream: &TcpStream, address: SocketAddr, in_tls: bool) {
    // At debug: a flood must not fill the log.
    tracing::debug!(%address, "all connections are busy: refused");
    if !in_tls {
        // A client that does not get this answer sees a closed connection, which means the same.
        let _ = stream.try_write(CROWDED);
    }
}

async fn connection(stream: TcpStream, door: Door, peer: Arc<Peer>) {
    // An event of a stream must not wait for the next one; where that cannot be had it is only late.
    let _ = stream.set_nodelay(true);
    let stream = Patient::new(stream, door.limits.answer_stall);
    let Some(tls) = &door.tls else { return speak(stream, door, peer).await };
    let shaken = tokio::time::timeout(HANDSHAKE_WITHIN, tls.acceptor().accept(stream));
    match door.stop.run_until_cancelled(shaken).await {
        Some(Ok(Ok(stream))) => speak(stream, door, peer).await,
        Some(Ok(Err(error))) => tracing::debug!(%error, "a TLS handshake failed"),
        Some(Err(_)) => tracing::debug!("a TLS handshake was not done in time"),
        None => {}
    }
}

async fn speak<S>(stream: S, door: Door, peer: Arc<Peer>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Door { router, stop, limits, .. } = door;
    let of_requests = peer.clone();
    let service = service_fn(move |request| answer(request, router.clone(), of_requests.clone()));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_within)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(Strict::new(stream)), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            loop {
                tokio::select! {
                    ended = served.as_mut() => break ended,
                    // Half a request is nothing to wait for.
                    () = tokio::time::sleep(HALF_SENT_GRACE) => if peer.is_quiet() {
                        return;
                    }
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn answer(
    mut request: Request<Incoming>,
    router: Router,
    peer: Arc<Peer>,
) -> Result<hyper::Response<Answer<Kept>>, io::Error> {
    let answering = Answering(peer.clone());
    if request.body().is_end_stream() {
        peer.has_asked();
    }
    request.extensions_mut().insert(peer);
    let Ok(mut response) = router.oneshot(request).await;
    let line = response.extensions_mut().remove::<Arc<Line>>();
    let ticket = response.extensions_mut().remove::<Arc<Option<Ticket>>>();
    let place = response.extensions_mut().remove::<Arc<Part>>();
    Ok(response.map(|body| Answer::new(body, (answering, line, place)).placed(ticket)))
}

#[cfg(test)]
mod tests {
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::{Instant, timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);
    const HEAD: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

    struct Started {
        address: SocketAddr,
        stop: CancellationToken,
        server: tokio::task::JoinHandle<()>,
    }

    async fn start(limits: ConnectionLimits) -> Started {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let echo = post(async |body: String| body);
        let large = get(async || vec![b'x'; 64 << 20]);
        let slow = get(async || {
            tokio::time::sleep(Duration::from_secs(2)).await;
            "late"
        });
        let router = Router::new()
            .route("/", get(async || "here"))
            .route("/echo", echo)
            .route("/large", large)
            .route("/slow", slow);
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(listener, router, None, stop.clone(), limits));
        Started { address, stop, server }
    }

    impl Started {
        async fn client(&self, send: &[u8]) -> TcpStream {
            let mut client = TcpStream::connect(self.address).await.unwrap();
            client.write_all(send).await.unwrap();
            client
        }

        async fn end(self) -> Duration {
            let began = Instant::now();
            self.stop.cancel();
            timeout(PATIENCE, self.server).await.expect("it ends in order").unwrap();
            began.elapsed()
        }
    }

    fn limits() -> ConnectionLimits {
        ConnectionLimits::of_server(1)
    }

    /// Everything that the client reads until the server closes the connection.
    async fn read_all(client: &mut TcpStream) -> String {
        let mut text = String::new();
        let read = timeout(PATIENCE, client.read_to_string(&mut text)).await;
        // A reset is a way to close too.
        let _ = read.expect("the server closes the connection");
        text
    }

    #[tokio::test]
    async fn half_a_head_is_given_up_and_whole_ones_are_served_meanwhile() {
        let head_within = Duration::from_millis(300);
        let server = start(ConnectionLimits { head_within, ..limits() }).await;
        let mut slow = server.client(b"GET / HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
        let mut quick = server.client(HEAD).await;
        let answer = read_all(&mut quick).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"), "{answer}");
        assert!(!read_all(&mut slow).await.contains("200"));
        let address = server.address;
        server.end().await;
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    }

    #[tokio::test]
    async fn the_end_does_not_wait_for_half_a_request_but_for_a_running_answer() {
        let server = start(limits()).await;
        let _silent = server.client(b"").await;
        let _head = server.client(b"POST /echo HTTP/1.1\r\nhost: x\r\n").await;
        let _body = server
            .client(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\nhalf")
            .await;
        let mut running = server.client(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let took = server.end().await;
        assert!(read_all(&mut running).await.ends_with("late"), "what runs is answered");
        assert!(took < PATIENCE / 2, "{took:?}");
    }

    #[tokio::test]
    async fn one_more_connection_takes_the_place_of_the_longest_quiet_one() {
        let server = start(ConnectionLimits { connections: 3, of_address: 3, ..limits() }).await;
        let mut quiet = Vec::new();
        for _ in 0..3 {
            quiet.push(server.client(b"").await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(read_all(&mut server.client(HEAD).await).await.ends_with("here"));
        assert_eq!(read_all(&mut quiet[0]).await, "", "the first one was closed");
        quiet[2].write_all(HEAD).await.unwrap();
        assert!(read_all(&mut quiet[2]).await.ends_with("here"), "the last one was not");
        let slow = b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let mut busy = Vec::new();
        for _ in 0..3 {
            busy.push(server.client(slow).await);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(read_all(&mut server.client(b"").await).await.starts_with("HTTP/1.1 503"));
        assert!(read_all(&mut busy[0]).await.contains("200"), "answers are not cut for newcomers");
        server.end().await;
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_is_given_up() {
        let answer_stall = Duration::from_millis(300);
        let server = start(ConnectionLimits { answer_stall, ..limits() }).await;
        let mut deaf = server.client(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut read = Vec::new();
        let _ = timeout(PATIENCE, deaf.read_to_end(&mut read)).await.expect("it was closed");
        assert!(read.len() < 64 << 20, "{} bytes came", read.len());
        server.end().await;
    }
}
