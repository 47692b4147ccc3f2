//! A worker that reports the capabilities that a test sets, and refuses everything else. It shows how a coordinator
//! treats lies.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use brigade_proto::control::{HelloReply, PrepareRequest};
use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use prost::Message;
use tokio::net::{TcpListener, TcpStream};

use crate::hostile::framed;

/// A worker that lies.
pub struct Liar {
    /// The address on which it listens.
    pub address: SocketAddr,
    prepared: Arc<Mutex<Vec<u64>>>,
}

impl Liar {
    /// Listens, and answers every handshake with `hello`.
    pub async fn start(mut hello: HelloReply) -> Self {
        // Its heartbeats name no instance.
        hello.capabilities.iter_mut().for_each(|capabilities| capabilities.instance = 0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let prepared: Arc<Mutex<Vec<u64>>> = Arc::default();
        let (seen, hello) = (prepared.clone(), framed(&hello.encode_to_vec()));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, hello.clone(), seen.clone()));
            }
        });
        Self { address, prepared }
    }

    /// Epochs that it was asked to prepare for.
    pub fn epochs(&self) -> Vec<u64> {
        self.prepared.lock().unwrap().clone()
    }
}

async fn serve(stream: TcpStream, hello: Bytes, seen: Arc<Mutex<Vec<u64>>>) {
    let Ok(mut calls) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, answer))) = calls.accept().await {
        let (hello, seen) = (hello.clone(), seen.clone());
        tokio::spawn(async move {
            let (head, body) = request.into_parts();
            let message = whole(body).await;
            match head.uri.path() {
                "/brigade.control.Worker/Hello" => reply(answer, hello, "0"),
                "/brigade.control.Worker/Health" => reply(answer, framed(&[]), "0"),
                "/brigade.control.Worker/Prepare" => {
                    let request = PrepareRequest::decode(&message[5..]).unwrap();
                    seen.lock().unwrap().push(request.epoch);
                    reply(answer, Bytes::new(), "12");
                }
                _ => reply(answer, Bytes::new(), "12"),
            }
        });
    }
}

async fn whole(mut body: RecvStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(Ok(data)) = body.data().await {
        // A peer that has gone needs no window.
        let _ = body.flow_control().release_capacity(data.len());
        bytes.extend_from_slice(&data);
    }
    bytes
}

/// Answers; a peer that has gone misses nothing.
fn reply(mut answer: SendResponse<Bytes>, message: Bytes, status: &str) {
    let head = http::Response::builder().header("content-type", "application/grpc");
    if let Ok(mut stream) = answer.send_response(head.body(()).unwrap(), false) {
        let _ = stream.send_data(message, false);
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", status.parse().unwrap());
        let _ = stream.send_trailers(trailers);
    }
}
