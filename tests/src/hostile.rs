//! A peer that keeps to HTTP/2 and to nothing else. It makes calls with bodies of any bytes, from any
//! loopback address, against a worker process whose memory can be read.

use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use prost::Message;
use tokio::net::{TcpSocket, TcpStream};

use crate::process::{Running, brigade};

/// The beginning of a worker's ready line.
const READY: &str = "brigade worker ready on ";

/// Where hostile peers come from.
pub const HOSTILE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);
/// Where a peer comes from that means well.
pub const FRIENDLY: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The binary that is tried: the one built with the tests, or `BRIGADE_VICTIM`.
pub fn binary() -> PathBuf {
    std::env::var_os("BRIGADE_VICTIM").map_or_else(brigade, PathBuf::from)
}

/// A worker process under attack.
pub struct Victim {
    /// The running process.
    pub process: Running,
    /// The address on which it listens.
    pub address: SocketAddr,
}

impl Victim {
    /// Starts `program worker` on a free port, with a cap on its address space in KiB as `ulimit -v`
    /// takes it.
    pub fn start(program: &Path, address_space_kib: u64) -> Self {
        let mut command = Command::new("sh");
        let script = format!("ulimit -v {address_space_kib}; exec \"$0\" \"$@\"");
        command.args(["-c", &script]).arg(program);
        command.args(["worker", "--listen", "127.0.0.1:0", "--memory", "1G", "--threads", "1"]);
        command.env("RUST_LOG", "error");
        let process = Running::spawn(command, READY);
        let address = process.ready.trim().parse().unwrap();
        let victim = Self { process, address };
        victim.forget_peak();
        victim
    }

    /// Begins the peak anew: what a worker needs to measure the machine's speed is over.
    pub fn forget_peak(&self) {
        // The kernel's own way (proc(5), clear_refs).
        std::fs::write(format!("/proc/{}/clear_refs", self.process.pid()), "5").unwrap();
    }

    /// The same as [`Victim::start`], of [`binary`], under 8 GiB.
    pub fn ours() -> Self {
        Self::start(&binary(), 8 << 20)
    }

    /// Most bytes that were resident since it was ready; `None` when it is gone.
    pub fn peak(&self) -> Option<u64> {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
    }

    /// Whether it answers a stranger that means well, on a new connection.
    pub async fn serves(&self) -> bool {
        let health = Bytes::from_static(&[0; 5]);
        let answer = async {
            let peer = Peer::connect(self.address, FRIENDLY).await.ok()?;
            let (answer, _body) = peer.send("/brigade.control.Worker/Health", health).await.ok()?;
            outcome(answer).await
        };
        let answer = tokio::time::timeout(std::time::Duration::from_secs(20), answer).await;
        matches!(answer, Ok(Some((0, _))))
    }
}

/// A connection of a peer.
#[derive(Clone)]
pub struct Peer {
    calls: SendRequest<Bytes>,
}

impl Peer {
    /// Connects from the loopback address `from`.
    ///
    /// # Errors
    /// The system's, or that the other end closed the connection at once.
    pub async fn connect(to: SocketAddr, from: Ipv4Addr) -> io::Result<Self> {
        let stream = silent(to, from).await?;
        let mut builder = h2::client::Builder::new();
        builder.max_concurrent_reset_streams(10_000);
        let (calls, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            // Its calls report how it ends.
            let _ = connection.await;
        });
        Ok(Self { calls })
    }

    /// Begins a call whose body is not over.
    ///
    /// # Errors
    /// The connection's.
    pub async fn begin(
        &self,
        path: &str,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut calls = self.calls.clone().ready().await?;
        let request = http::Request::post(format!("http://victim{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        calls.send_request(request.body(()).unwrap(), false)
    }

    /// Makes a call whose whole body is `bytes`.
    ///
    /// # Errors
    /// The connection's.
    pub async fn send(
        &self,
        path: &str,
        bytes: Bytes,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let (answer, mut body) = self.begin(path).await?;
        // An early refusal is not an error here: the answer has it.
        if push(&mut body, bytes).await.is_ok() {
            let _ = body.send_data(Bytes::new(), true);
        }
        Ok((answer, body))
    }

    /// Makes a call that has one message, and waits for its end: gRPC status and message.
    pub async fn call(&self, path: &str, message: &impl Message) -> Option<(u32, String)> {
        let (answer, _body) = self.send(path, framed(&message.encode_to_vec())).await.ok()?;
        outcome(answer).await
    }
}

/// A connection on which nothing is said.
///
/// # Errors
/// The system's.
pub async fn silent(to: SocketAddr, from: Ipv4Addr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends bytes as fast as the other end takes them.
///
/// # Errors
/// The call is over.
pub async fn push(body: &mut SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        body.reserve_capacity(bytes.len());
        match poll_fn(|cx| body.poll_capacity(cx)).await {
            Some(room) => {
                let piece = bytes.split_to(room?.min(bytes.len()));
                body.send_data(piece, false)?;
            }
            None => return Err(h2::Reason::CANCEL.into()),
        }
    }
    Ok(())
}

/// How a call ended: its gRPC status and message; `None` where the connection or the call was cut.
pub async fn outcome(answer: ResponseFuture) -> Option<(u32, String)> {
    let (head, mut body) = answer.await.ok()?.into_parts();
    let of = |headers: &http::HeaderMap| {
        let text = |name| headers.get(name).map(|value| unescaped(value.as_bytes()));
        Some((text("grpc-status")?.parse().ok()?, text("grpc-message").unwrap_or_default()))
    };
    if let Some(at_once) = of(&head.headers) {
        return Some(at_once);
    }
    drain(&mut body).await;
    of(&body.trailers().await.ok()??)
}

/// A gRPC message as it was before its bytes were written as `%20`.
fn unescaped(text: &[u8]) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = code.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn drain(body: &mut RecvStream) {
    while let Some(Ok(data)) = body.data().await {
        // A window that is not given back only ends the call sooner.
        let _ = body.flow_control().release_capacity(data.len());
    }
}

/// A message's length in front of nothing.
pub fn claim(nbytes: u32) -> Bytes {
    let mut bytes = BytesMut::with_capacity(5);
    bytes.put_u8(0);
    bytes.put_u32(nbytes);
    bytes.freeze()
}

/// A message as it travels.
pub fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(5 + message.len());
    bytes.extend_from_slice(&claim(message.len() as u32));
    bytes.extend_from_slice(message);
    bytes.freeze()
}

/// A length-delimited protobuf field.
pub fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut len = value.len();
    while len >= 0x80 {
        bytes.push(len as u8 | 0x80);
        len >>= 7;
    }
    bytes.push(len as u8);
    bytes.extend_from_slice(value);
    bytes
}
