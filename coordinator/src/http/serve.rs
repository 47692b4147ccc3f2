//! Connections: accepted, served, and ended in order. HTTP/1.1 with keep-alive.

use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long a client may take to send the head of a request, counted from the connection's start or
/// from the last answer's end: a connection that idles or trickles longer is closed.
pub const HEAD_WITHIN: Duration = Duration::from_secs(60);

/// Serves until `stop`, then until the answers that run have ended.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    serve_within(listener, router, stop, HEAD_WITHIN).await;
}

async fn serve_within(
    mut listener: TcpListener,
    router: Router,
    stop: CancellationToken,
    head_within: Duration,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            (stream, _) = Listener::accept(&mut listener) => {
                let (router, stop) = (router.clone(), stop.clone());
                connections.spawn(connection(stream, router, stop, head_within));
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: TcpStream,
    router: Router,
    stop: CancellationToken,
    head_within: Duration,
) {
    // An event of a stream must not wait for the next one; where that cannot be had it is only late.
    let _ = stream.set_nodelay(true);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_within)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    /// What the client reads until the server closes the connection.
    async fn read_all(client: &mut TcpStream) -> String {
        let mut text = String::new();
        let read = timeout(Duration::from_secs(20), client.read_to_string(&mut text)).await;
        // A reset is a way to close too.
        let _ = read.expect("the server closes the connection");
        text
    }

    #[tokio::test]
    async fn half_a_head_is_given_up_and_whole_ones_are_served_meanwhile() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "here"));
        let stop = CancellationToken::new();
        let within = Duration::from_millis(300);
        let server = tokio::spawn(serve_within(listener, router, stop.clone(), within));
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx-slow: ").await.unwrap();
        let mut quick = TcpStream::connect(address).await.unwrap();
        let head = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        quick.write_all(head).await.unwrap();
        let answer = read_all(&mut quick).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"), "{answer}");
        assert!(!read_all(&mut slow).await.contains("200"));
        stop.cancel();
        timeout(Duration::from_secs(20), server).await.expect("it ends in order").unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    }
}
