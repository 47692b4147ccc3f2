//! The service of copies: keeps other workers' copies, lists them, hands them out, and restores sequences.

use std::sync::Arc;

use brigade_engine::batch::CopyName;
use brigade_proto::copies::copies_server;
use brigade_proto::copies::{
    CopyPart, FetchRequest, FindReply, FindRequest, KeepReply, KeepRequest, PrefixesReply,
    PrefixesRequest, PutBackReply, PutBackRequest, SettleReply, SettleRequest, WeightsPart,
    WeightsRequest, keep_request,
};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{COPY_NAME_BYTES, MAX_COPY_NAMES, MAX_PIECE_BYTES};
use brigade_proto::net::{Caller, Intake};
use brigade_proto::tls::Who;
use bytes::Bytes;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::gather;
use crate::copies::parts::{Assembler, Event, bad, name_of};
use crate::copies::piece::Piece;
use crate::copies::store::{ENTRY_BYTES, Item, Store, What};
use crate::copies::{IN_QUEUE_BYTES, fetch};
use crate::machine::pace::Pace;
use crate::state::Worker;

/// The gRPC service of copies.
#[derive(Clone)]
pub struct CopiesService {
    worker: Arc<Worker>,
    pace: Arc<Pace>,
}

impl CopiesService {
    /// Serves `worker`, strangers at `pace`.
    pub fn new(worker: Arc<Worker>, pace: Arc<Pace>) -> Self {
        Self { worker, pace }
    }

    /// The result of a call. A refusal is delayed like other answers to strangers.
    async fn ended<T>(
        &self,
        caller: Option<Caller>,
        result: Result<T, Failure>,
    ) -> Result<T, Status> {
        if result.is_err() {
            self.pace.turn(caller.as_ref().map(Caller::peer)).await?;
        }
        Ok(result?)
    }
}

fn caller_of<T>(request: &Request<T>) -> Option<Caller> {
    request.extensions().get().cloned()
}

fn who_of(caller: Option<&Caller>) -> Who {
    caller.map(Caller::who).unwrap_or_default()
}

#[tonic::async_trait]
impl copies_server::Copies for CopiesService {
    type FetchStream = ReceiverStream<Result<CopyPart, Status>>;
    type WeightsStream = ReceiverStream<Result<WeightsPart, Status>>;

    async fn keep(
        &self,
        request: Request<Streaming<KeepRequest>>,
    ) -> Result<Response<KeepReply>, Status> {
        let (caller, intake) = (caller_of(&request), request.extensions().get().cloned());
        let who = who_of(caller.as_ref());
        let kept = keep(&self.worker, request.into_inner(), intake, &who).await;
        self.ended(caller, kept).await?;
        Ok(Response::new(KeepReply {}))
    }

    async fn find(&self, request: Request<FindRequest>) -> Result<Response<FindReply>, Status> {
        let (caller, request) = (caller_of(&request), request.into_inner());
        let found = async {
            let names = names_of(&request.names)?;
            let FindRequest { coordinator_id, epoch, .. } = &request;
            let who = who_of(caller.as_ref());
            self.worker.find_copies(coordinator_id, *epoch, &names, &who).await
        };
        let found = found.await;
        let found = self.ended(caller, found).await?;
        Ok(Response::new(FindReply { found }))
    }

    async fn fetch(
        &self,
        request: Request<FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let (caller, request) = (caller_of(&request), request.into_inner());
        let who = who_of(caller.as_ref());
        let source = match request.prefix {
            Some(_) => self.worker.records_for(&request, &who).await,
            None => self.worker.copies_for(&request, &who),
        };
        let source = self.ended(caller, source).await?;
        Ok(Response::new(ReceiverStream::new(fetch::stream(source))))
    }

    async fn weights(
        &self,
        request: Request<WeightsRequest>,
    ) -> Result<Response<Self::WeightsStream>, Status> {
        let (caller, request) = (caller_of(&request), request.into_inner());
        let turn = self.worker.weights_turn();
        let asked = turn.and_then(|turn| Ok((gather::wanted(&request)?, turn)));
        let (wanted, turn) = self.ended(caller, asked).await?;
        let cache = self.worker.loader().cache.clone();
        Ok(Response::new(ReceiverStream::new(gather::stream(cache, wanted, turn))))
    }

    async fn put_back(
        &self,
        request: Request<PutBackRequest>,
    ) -> Result<Response<PutBackReply>, Status> {
        let (caller, request) = (caller_of(&request), request.into_inner());
        let fetched = self.worker.put_back(request, &who_of(caller.as_ref())).await;
        let fetched_bytes = self.ended(caller, fetched).await?;
        Ok(Response::new(PutBackReply { fetched_bytes }))
    }

    async fn settle(
        &self,
        request: Request<SettleRequest>,
    ) -> Result<Response<SettleReply>, Status> {
        let (caller, request) = (caller_of(&request), request.into_inner());
        let SettleRequest { coordinator_id, epoch } = &request;
        let who = who_of(caller.as_ref());
        let settled = self.worker.settle(coordinator_id, *epoch, &who).await;
        self.ended(caller, settled).await?;
        Ok(Response::new(SettleReply {}))
    }

    async fn prefixes(
        &self,
        request: Request<PrefixesRequest>,
    ) -> Result<Response<PrefixesReply>, Status> {
        let (caller, request) = (caller_of(&request), request.into_inner());
        let answered = self.worker.prefixes(request, &who_of(caller.as_ref())).await;
        Ok(Response::new(self.ended(caller, answered).await?))
    }
}

fn names_of(bytes: &[u8]) -> Result<Vec<CopyName>, Failure> {
    let names: Vec<CopyName> =
        bytes.chunks(COPY_NAME_BYTES).map(name_of).collect::<Result<_, _>>()?;
    if names.len() > MAX_COPY_NAMES {
        return Err(bad(format!("find.names are {}, the limit is {MAX_COPY_NAMES}", names.len())));
    }
    Ok(names)
}

/// Keeps what a stage sends, until it ends or the epoch is over.
async fn keep(
    worker: &Worker,
    mut messages: Streaming<KeepRequest>,
    intake: Option<Intake>,
    who: &Who,
) -> Result<(), Failure> {
    let from = |status: Status| Failure::from_status(&status);
    let first = messages.message().await.map_err(from)?.and_then(|request| request.part);
    let Some(keep_request::Part::Open(open)) = first else {
        return Err(bad("a stream of copies starts with its opening"));
    };
    let over = worker.begin_keep(&open, who)?;
    intake.iter().for_each(|intake| intake.accept(MAX_PIECE_BYTES));
    let copies = worker.copies();
    let assembler = Assembler::new(copies.buffers.clone());
    let mut keeper = Keeper { store: copies.kept.clone(), assembler, ..Keeper::default() };
    loop {
        let message = tokio::select! {
            biased;
            () = over.cancelled() => {
                let why = format!("epoch {} is over, or another stream is in its place", open.epoch);
                return Err(Failure::refusal(FailureKind::StaleEpoch, why));
            }
            message = messages.message() => message.map_err(from)?,
        };
        match message.map(|request| request.part) {
            None => return Ok(()),
            Some(Some(keep_request::Part::Copy(copy))) => keeper.take(copy)?,
            Some(_) => return Err(bad("keep.part is not a copy")),
        }
    }
}

/// Puts what comes into a store.
#[derive(Debug, Default)]
struct Keeper {
    store: Arc<Store>,
    assembler: Assembler,
    /// Parts whose position is not known before the end.
    rests: Vec<(Item, Bytes)>,
    rest_bytes: u64,
    /// A part of the copy could not be kept.
    spoilt: bool,
}

impl Keeper {
    fn take(&mut self, message: CopyPart) -> Result<(), Failure> {
        let event = self.assembler.take(message)?;
        let on_the_way = self.rest_bytes + self.assembler.nbytes();
        if on_the_way > IN_QUEUE_BYTES as u64 {
            return Err(bad(format!("{on_the_way} bytes of a copy that is not whole")));
        }
        let Some(event) = event else { return Ok(()) };
        let head = match &event {
            Event::Forget(name) => {
                self.store.forget(*name);
                return Ok(());
            }
            _ => self.assembler.head().ok_or_else(|| bad("copies without a head"))?,
        };
        match event {
            Event::Forget(_) => {}
            Event::Item(item, bytes) => match item.what {
                What::Pages { .. } => {
                    self.spoilt |= !self.store.put(head, item, Piece::Memory(bytes));
                }
                What::Rest { .. } => {
                    self.rest_bytes += bytes.len() as u64 + ENTRY_BYTES;
                    self.rests.push((item, bytes));
                }
            },
            Event::End(at) => {
                let (rests, spoilt) =
                    (std::mem::take(&mut self.rests), std::mem::take(&mut self.spoilt));
                self.rest_bytes = 0;
                let Some((len, mark)) = at.filter(|_| !spoilt) else { return Ok(()) };
                let at_len = |item| Item { what: What::Rest { len }, ..item };
                let mut kept = rests
                    .into_iter()
                    .map(|(item, bytes)| self.store.put(head, at_len(item), Piece::Memory(bytes)));
                if kept.all(|kept| kept) {
                    self.store.commit(head, len, mark);
                }
            }
        }
        Ok(())
    }
}
