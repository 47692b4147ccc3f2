//! Weights from other workers: complete and verified by their hashes, with any behaviour of the holders. Also the
//! limit of calls at a time.

use std::net::TcpListener;

use brigade_proto::address::Address;
use brigade_proto::control::*;
use brigade_proto::copies::copies_server::{Copies, CopiesServer};
use brigade_proto::copies::{
    CopyPart, FetchRequest as CopyRequest, FindReply, FindRequest, KeepReply, KeepRequest,
    PrefixesReply, PrefixesRequest, PutBackReply, PutBackRequest, SettleReply, SettleRequest,
    WeightsPart, WeightsRequest,
};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::FETCHES_AT_ONCE;
use brigade_proto::net::{Listener, server};
use tonic::{Request, Response, Status, Streaming};

use crate::common::model::{Model, write_model};
use crate::common::*;

const N_LAYERS: u32 = 2;
/// f32 values of a tensor: several messages of a megabyte.
const VALUES: usize = 700_000;

/// A model, and a worker that has all of it in its cache.
async fn holder() -> (Model, TestWorker) {
    let dir = scratch();
    let model = Model::open(&write_model(&dir, "m.gguf", N_LAYERS, VALUES, 0.0));
    let worker = TestWorker::start(&dir.join("holder"));
    let mut client = Client::connect(&worker, "c", 1).await;
    let order = order(&client, &model);
    let missing = client.prepare(order).await.unwrap().missing;
    let chunks = client.chunks(&model, &missing, 1 << 20);
    client.push(chunks).await.unwrap();
    (model, worker)
}

/// An order that names no file.
fn order(client: &Client, model: &Model) -> PrepareRequest {
    let order = client.order(model, spec(0, 1, 0..N_LAYERS, None), true);
    PrepareRequest { files: vec![], ..order }
}

/// A worker that has nothing, and its coordinator, which has told it what to have.
async fn taker(model: &Model) -> (TestWorker, Client, Vec<Blob>) {
    let worker = TestWorker::start(&scratch());
    let mut client = Client::connect(&worker, "c", 1).await;
    let order = order(&client, model);
    let missing = client.prepare(order).await.unwrap().missing;
    (worker, client, missing.into_iter().filter_map(|missing| missing.blob).collect())
}

/// Numbers of the blobs that come when `holders` are asked.
async fn gathers(
    client: &mut Client,
    blobs: &[Blob],
    holders: &[&Address],
) -> Result<Vec<u32>, Failure> {
    let holder = |address: &&Address| Holder { address: address.to_string(), ..Holder::default() };
    let request = GatherRequest {
        epoch: client.epoch,
        coordinator_id: client.id.clone(),
        blobs: blobs.to_vec(),
        holders: holders.iter().map(holder).collect(),
    };
    let stream = soon(client.control.gather_tensors(request)).await;
    let mut stream = stream.map_err(|status| Failure::from_status(&status))?.into_inner();
    let mut came = Vec::new();
    while let Some(event) = soon(stream.message()).await.map_err(|s| Failure::from_status(&s))? {
        if let Some(fetch_event::Event::Fetched(fetched)) = event.event {
            assert_eq!(fetched.blake3, blobs[fetched.span as usize].blake3);
            came.push(fetched.span);
        }
    }
    came.sort_unstable();
    Ok(came)
}

/// The blobs that the worker still lacks.
async fn lacks(client: &mut Client, model: &Model) -> Vec<MissingBlob> {
    let order = order(client, model);
    client.prepare(order).await.unwrap().missing
}

#[tokio::test]
async fn what_a_holder_has_comes_whole_and_once() {
    let (model, holder) = holder().await;
    let (_worker, mut client, blobs) = taker(&model).await;
    // Nothing listens at the first address: systems give that port to nobody.
    let (nobody, address) = ("127.0.0.1:1".parse().unwrap(), holder.address.clone());
    let holders = [&nobody, &address];
    let all: Vec<u32> = (0..blobs.len() as u32).collect();
    assert_eq!(gathers(&mut client, &blobs, &holders).await.unwrap(), all);
    assert!(lacks(&mut client, &model).await.is_empty());
    // Blobs that are here are not requested again.
    drop(holder);
    assert_eq!(gathers(&mut client, &blobs, &holders[..1]).await.unwrap(), all);
    client.load().await.unwrap();
}

#[tokio::test]
async fn what_is_there_of_a_tensor_is_not_sent_again() {
    let (model, holder) = holder().await;
    let (_worker, mut client, blobs) = taker(&model).await;
    let missing: Vec<MissingBlob> =
        blobs.iter().map(|blob| MissingBlob { blob: Some(blob.clone()), offset: 0 }).collect();
    // The first piece of one tensor comes by a push that is cut off.
    let large = missing.iter().find(|m| m.blob.as_ref().unwrap().nbytes > 1 << 20).unwrap();
    let first = client.chunks(&model, std::slice::from_ref(large), 1 << 20).remove(0);
    client.push(vec![first]).await.unwrap();
    let offset = |missing: &[MissingBlob]| missing.iter().map(|m| m.offset).sum::<u64>();
    assert_eq!(offset(&lacks(&mut client, &model).await), 1 << 20);
    let came = gathers(&mut client, &blobs, &[&holder.address]).await.unwrap();
    assert_eq!(came.len(), blobs.len());
    assert!(lacks(&mut client, &model).await.is_empty());
}

#[tokio::test]
async fn other_bytes_than_the_hash_says_are_not_taken() {
    let (model, holder) = holder().await;
    for lie in [Lie::OtherBytes, Lie::TooMany, Lie::NotAsked, Lie::Nothing] {
        let (_worker, mut client, blobs) = taker(&model).await;
        let liar = liar(lie).await;
        assert!(gathers(&mut client, &blobs, &[&liar]).await.unwrap().is_empty(), "{lie:?}");
        assert_eq!(lacks(&mut client, &model).await.len(), blobs.len(), "{lie:?}");
        // An honest one behind it still helps.
        let came = gathers(&mut client, &blobs, &[&liar, &holder.address]).await.unwrap();
        assert_eq!(came.len(), blobs.len(), "{lie:?}");
        client.load().await.unwrap();
    }
}

#[tokio::test]
async fn a_worker_fetches_in_so_many_calls_at_a_time() {
    let dir = scratch();
    let model = Model::open(&write_model(&dir, "m.gguf", N_LAYERS, 100, 0.0));
    let (_worker, mut client, blobs) = taker(&model).await;
    // A source that takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let request = FetchRequest {
        epoch: client.epoch,
        coordinator_id: client.id.clone(),
        address: format!("http://{}/x.gguf", silent.local_addr().unwrap()),
        file_bytes: 100,
        file_sha256: vec![1; 32].into(),
        spans: vec![Span { offset: 0, nbytes: 9 }],
        private_hosts: vec!["127.0.0.1".to_string()],
        ..FetchRequest::default()
    };
    let mut calls = Vec::new();
    for _ in 0..FETCHES_AT_ONCE {
        calls.push(client.control.fetch_tensors(request.clone()).await.unwrap());
    }
    let refused = client.control.fetch_tensors(request).await.unwrap_err();
    let refused = Failure::from_status(&refused);
    assert_eq!(refused.kind(), FailureKind::Busy, "{refused}");
    assert!(refused.reason.contains("4 calls fetch tensors"), "{refused}");
    let refused = gathers(&mut client, &blobs, &[&"127.0.0.1:9".parse().unwrap()]).await;
    assert_eq!(refused.unwrap_err().kind(), FailureKind::Busy);
}

/// A misbehaviour of a holder.
#[derive(Clone, Copy, Debug)]
enum Lie {
    OtherBytes,
    TooMany,
    NotAsked,
    Nothing,
}

async fn liar(lie: Lie) -> Address {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), false).await.unwrap();
    let address = listener.address().clone();
    let router = server().add_service(CopiesServer::new(Liar(lie)));
    tokio::spawn(listener.serve(router, std::future::pending()));
    address
}

struct Liar(Lie);

type Parts = tokio_stream::Iter<std::vec::IntoIter<Result<WeightsPart, Status>>>;

fn refused<T>() -> Result<T, Status> {
    Err(Status::unimplemented("a liar"))
}

#[tonic::async_trait]
impl Copies for Liar {
    type FetchStream = tokio_stream::Empty<Result<CopyPart, Status>>;
    type WeightsStream = Parts;

    async fn weights(
        &self,
        request: Request<WeightsRequest>,
    ) -> Result<Response<Self::WeightsStream>, Status> {
        let blobs = request.into_inner().blobs;
        let part =
            |blob: usize, n: usize| Ok(WeightsPart { blob: blob as u32, data: vec![7; n].into() });
        let parts = match self.0 {
            Lie::OtherBytes => {
                let whole = |(i, b): (usize, &brigade_proto::copies::WantedBlob)| {
                    let mut left = b.nbytes as usize;
                    std::iter::from_fn(move || {
                        let n = left.min(1 << 20);
                        left -= n;
                        (n > 0).then(|| part(i, n))
                    })
                };
                blobs.iter().enumerate().flat_map(whole).collect()
            }
            Lie::TooMany => vec![part(0, blobs[0].nbytes as usize + 1)],
            Lie::NotAsked => vec![part(blobs.len(), 9)],
            Lie::Nothing => vec![part(0, 0)],
        };
        Ok(Response::new(tokio_stream::iter(parts)))
    }

    async fn keep(
        &self,
        _: Request<Streaming<KeepRequest>>,
    ) -> Result<Response<KeepReply>, Status> {
        refused()
    }

    async fn find(&self, _: Request<FindRequest>) -> Result<Response<FindReply>, Status> {
        refused()
    }

    async fn fetch(&self, _: Request<CopyRequest>) -> Result<Response<Self::FetchStream>, Status> {
        refused()
    }

    async fn put_back(&self, _: Request<PutBackRequest>) -> Result<Response<PutBackReply>, Status> {
        refused()
    }

    async fn settle(&self, _: Request<SettleRequest>) -> Result<Response<SettleReply>, Status> {
        refused()
    }

    async fn prefixes(
        &self,
        _: Request<PrefixesRequest>,
    ) -> Result<Response<PrefixesReply>, Status> {
        refused()
    }
}
