//! A worker of the release before this one: a real worker behind a proxy that drops fields which that release did not
//! know.
//!
//! The older release is kept as its messages (`data/wire-8`). A process of it would decode a message and drop the
//! fields that it does not know; the proxy drops them from all that passes, in both directions. Connections are
//! plain HTTP/2.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use tokio::net::{TcpListener, TcpStream};

/// Bytes before a message of gRPC: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Bytes on their way without an acknowledgement: a frame of hidden rows is large.
const WINDOW: u32 = 4 << 20;

/// Time for what a worker said before it ended.
const LAST_ANSWERS: Duration = Duration::from_millis(50);

/// The proxy in front of a worker.
pub struct Older {
    /// Where the older worker seems to listen.
    pub address: SocketAddr,
    wire: Arc<Wire>,
}

/// Fields of a message by number; of those that are messages, their type.
type Fields = HashMap<u32, Option<String>>;

/// The messages that the older release knew.
struct Wire {
    messages: HashMap<String, Fields>,
    /// Types of question and answer by path.
    methods: HashMap<String, (String, String)>,
    is_upgraded: AtomicBool,
    dropped: AtomicUsize,
    unknown: AtomicUsize,
}

impl Older {
    /// Stands before the worker at `target`, for as long as the process lives.
    ///
    /// # Panics
    /// If it cannot listen, or the older release's messages cannot be read.
    pub fn before(target: SocketAddr) -> Self {
        let wire = Arc::new(Wire::read());
        let (of_connections, runtime) = (wire.clone(), tokio::runtime::Runtime::new().unwrap());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            runtime.block_on(async move {
                while let Ok((caller, _)) = listener.accept().await {
                    tokio::spawn(connection(caller, target, of_connections.clone()));
                }
            });
        });
        Self { address, wire }
    }

    /// From now on it is a worker of this release: nothing is lost.
    pub fn upgrade(&self) {
        self.wire.is_upgraded.store(true, Ordering::Relaxed);
    }

    /// Fields that were lost so far.
    pub fn dropped(&self) -> usize {
        self.wire.dropped.load(Ordering::Relaxed)
    }

    /// Calls that the older release did not have: they must not be made.
    pub fn unknown(&self) -> usize {
        self.wire.unknown.load(Ordering::Relaxed)
    }
}

impl Wire {
    fn read() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/wire-8");
        let names = ["control.proto", "pipeline.proto", "copies.proto"];
        let set = protox::compile(names, [folder]).unwrap();
        let (mut messages, mut methods) = (HashMap::new(), HashMap::new());
        for file in &set.file {
            for message in &file.message_type {
                let fields = message.field.iter().map(|field| {
                    // An enum has the name of its type too.
                    let is_message =
                        field.r#type() == prost_types::field_descriptor_proto::Type::Message;
                    (field.number() as u32, is_message.then(|| field.type_name().to_owned()))
                });
                let name = format!(".{}.{}", file.package(), message.name());
                messages.insert(name, fields.collect::<Fields>());
            }
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    let types = (method.input_type().to_owned(), method.output_type().to_owned());
                    methods.insert(path, types);
                }
            }
        }
        let (is_upgraded, dropped, unknown) = Default::default();
        Self { messages, methods, is_upgraded, dropped, unknown }
    }

    /// Types of question and answer of a call; `None`: the older release has no such call.
    fn types(&self, path: &str) -> Option<(String, String)> {
        if self.is_upgraded.load(Ordering::Relaxed) {
            // Passing messages are not inspected.
            Some(Default::default())
        } else {
            self.methods.get(path).cloned()
        }
    }

    /// A message as the older release hands it on.
    fn known(&self, message: &[u8], of: &str) -> Vec<u8> {
        let fields = &self.messages[of];
        let (mut left, mut out) = (message, Vec::with_capacity(message.len()));
        while left.has_remaining() {
            let begin = left;
            let tag = prost::encoding::decode_varint(&mut left).expect("a tag");
            let mut body: &[u8] = &[];
            match tag & 7 {
                0 => drop(prost::encoding::decode_varint(&mut left).expect("a number")),
                1 => left.advance(8),
                2 => {
                    let n = prost::encoding::decode_varint(&mut left).expect("a length") as usize;
                    (body, left) = left.split_at(n);
                }
                5 => left.advance(4),
                other => panic!("wire type {other} of {of}"),
            }
            match fields.get(&((tag >> 3) as u32)) {
                None => drop(self.dropped.fetch_add(1, Ordering::Relaxed)),
                Some(None) => out.extend_from_slice(&begin[..begin.len() - left.len()]),
                Some(Some(inner)) => {
                    let inner = self.known(body, inner);
                    prost::encoding::encode_varint(tag, &mut out);
                    prost::encoding::encode_varint(inner.len() as u64, &mut out);
                    out.extend_from_slice(&inner);
                }
            }
        }
        out
    }

    /// The first whole message among the received bytes, as it is passed on, with its prefix.
    fn next(&self, held: &mut BytesMut, of: &str) -> Option<Bytes> {
        let length = held.get(1..PREFIX)?.try_into().expect("four bytes");
        let end = PREFIX + u32::from_be_bytes(length) as usize;
        if held.len() < end {
            return None;
        }
        let message = held.split_to(end).freeze();
        if self.is_upgraded.load(Ordering::Relaxed) {
            return Some(message);
        }
        assert_eq!(message[0], 0, "no message is compressed");
        let known = self.known(&message[PREFIX..], of);
        let prefix = [&[0], &(known.len() as u32).to_be_bytes()[..]].concat();
        Some([prefix, known].concat().into())
    }
}

async fn connection(caller: TcpStream, target: SocketAddr, wire: Arc<Wire>) {
    // Nothing listens there: the caller sees a connection that ends.
    let Ok(worker) = TcpStream::connect(target).await else { return };
    let _ = (caller.set_nodelay(true), worker.set_nodelay(true));
    let mut to_callers = h2::server::Builder::new();
    to_callers.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let mut to_worker = h2::client::Builder::new();
    to_worker.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let Ok(mut calls) = to_callers.handshake::<_, Bytes>(caller).await else { return };
    let Ok((client, connection)) = to_worker.handshake::<_, Bytes>(worker).await else { return };
    let mut worker = tokio::spawn(connection);
    let accept = async {
        while let Some(Ok((request, respond))) = calls.accept().await {
            tokio::spawn(call_through(client.clone(), request, respond, wire.clone()));
        }
    };
    tokio::pin!(accept);
    tokio::select! {
        () = &mut accept => worker.abort(),
        // A worker that ends takes its connections along, when its last answers are through.
        _ = &mut worker => drop(tokio::time::timeout(LAST_ANSWERS, accept).await),
    }
}

async fn call_through(
    client: SendRequest<Bytes>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    wire: Arc<Wire>,
) {
    let (head, body) = request.into_parts();
    let Some((question, answer)) = wire.types(head.uri.path()) else {
        wire.unknown.fetch_add(1, Ordering::Relaxed);
        let unimplemented = Response::builder().header("content-type", "application/grpc");
        let unimplemented = unimplemented.header("grpc-status", "12").body(()).unwrap();
        // The caller may have gone.
        let _ = respond.send_response(unimplemented, true);
        return;
    };
    let asked = async {
        let mut client = client.ready().await?;
        client.send_request(Request::from_parts(head, ()), false)
    };
    let Ok((response, to_worker)) = asked.await else { return respond.send_reset(Reason::CANCEL) };
    tokio::spawn(pump(body, to_worker, question, wire.clone()));
    let Ok(response) = response.await else { return respond.send_reset(Reason::CANCEL) };
    let (head, body) = response.into_parts();
    let is_all = body.is_end_stream();
    if let Ok(to_caller) = respond.send_response(Response::from_parts(head, ()), is_all)
        && !is_all
    {
        pump(body, to_caller, answer, wire).await;
    }
}

/// Passes messages on until one side ends.
async fn pump(mut from: RecvStream, mut to: SendStream<Bytes>, of: String, wire: Arc<Wire>) {
    let passed = async {
        let mut held = BytesMut::new();
        while let Some(chunk) = from.data().await {
            let chunk = chunk?;
            from.flow_control().release_capacity(chunk.len())?;
            held.extend_from_slice(&chunk);
            while let Some(message) = wire.next(&mut held, &of) {
                send(&mut to, message).await?;
            }
        }
        match from.trailers().await? {
            Some(trailers) => to.send_trailers(trailers),
            None => to.send_data(Bytes::new(), true),
        }
    };
    let passed: Result<(), h2::Error> = passed.await;
    if let Err(error) = passed {
        to.send_reset(error.reason().unwrap_or(Reason::CANCEL));
    }
}

async fn send(to: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        to.reserve_capacity(data.len());
        let room = poll_fn(|cx| to.poll_capacity(cx)).await;
        let room = room.unwrap_or(Err(Reason::CANCEL.into()))?;
        to.send_data(data.split_to(room.min(data.len())), false)?;
    }
    Ok(())
}
