//! Gathers copies of a sequence's state, from this worker and from others.
//!
//! A line keeps copies of states so that a sequence can go on after a worker was lost: it is then **put back**, which means that
//! stages read its state from copies. A copy has pieces for each layer and block. The other direction, a stream of this worker's
//! copies for another one, is at the end.

use brigade_proto::task;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use blake3::Hash;
use brigade_engine::batch::CopyName;
use brigade_engine::state::LayerPrint;
use brigade_proto::address::Address;
use brigade_proto::copies::copies_client::CopiesClient;
use brigade_proto::copies::{CopyPart, FetchRequest};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{COPY_CHUNK_BYTES, MAX_PIECE_BYTES, STATE_STALL_MS};
use brigade_proto::net::{Network, with_causes};
use brigade_proto::tls::verify::Expected;
use brigade_proto::tls::{KeyId, Role};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Status;

use super::parts::{self, Assembler, Event, bad};
use super::piece::Piece;
use super::store::{BlockPieces, Item, Pieces, What};
use crate::records::Kind;

/// A worker that keeps copies.
#[derive(Clone, Debug)]
pub struct Keeper {
    /// The address at which it is dialled.
    pub address: Address,
    /// The keeper's key, where it speaks TLS.
    pub key: Option<KeyId>,
}

/// Messages made and not yet taken by the transport.
const SEND_QUEUE: usize = 4;

/// Patience with the other end of a transfer.
const STALL: Duration = Duration::from_millis(STATE_STALL_MS);

/// One block's bytes, and the properties that they depend on.
#[derive(Debug, Default)]
struct Found {
    kind: Kind,
    /// A hash of all that the layer's bits depend on: weights, adapters, types.
    print: Option<Hash>,
    pages: Vec<Bytes>,
    rest: Bytes,
}

/// Copies of a sequence at one position, as bytes.
#[derive(Debug, Default)]
pub struct Gathered {
    blocks: HashMap<(u32, u32), Found>,
    /// Bytes of all blocks.
    nbytes: u64,
    /// Bytes that came from other workers.
    pub fetched: u64,
}

/// Full pages in runs of several, and the rest of the state, which holds at exactly this position.
type BlockBytes<'a> = (Vec<&'a [u8]>, &'a [u8]);

impl Gathered {
    /// The pieces that are in memory.
    pub fn in_memory(pieces: Pieces) -> Self {
        let mut gathered = Self::default();
        // Pieces in memory cannot fail to be read.
        let _ = gathered.add(&pieces, u64::MAX);
        gathered
    }

    /// Takes copies that are kept here. The thread waits where they are on a disk.
    ///
    /// # Errors
    /// More than `limit` bytes in all, or a disk that cannot be read.
    pub fn add(&mut self, pieces: &Pieces, limit: u64) -> Result<(), Failure> {
        let head = &pieces.head;
        for BlockPieces { layer, block, pages, rest, .. } in &pieces.blocks {
            let print = head.prints.get((layer - head.layers.start) as usize).copied();
            let found = self.blocks.entry((*layer, *block)).or_default();
            (found.kind, found.print) = (head.kind, print);
            for piece in pages.iter().map(|(_, piece)| piece).chain(rest) {
                self.nbytes += piece.len();
                check_size(self.nbytes, limit)?;
            }
            let io = |error: std::io::Error| {
                let why = format!("a copy cannot be read: {error}");
                Failure::refusal(FailureKind::Io, why)
            };
            for (_, piece) in pages {
                found.pages.push(piece.read().map_err(io)?);
            }
            if let Some(piece) = rest {
                found.rest = piece.read().map_err(io)?;
            }
        }
        Ok(())
    }

    /// Fetches copies from another worker.
    ///
    /// # Errors
    /// The other worker cannot be reached, has the copies no more, or sends something else; more than `limit` bytes would be fetched.
    pub async fn fetch(
        &mut self,
        Keeper { address, key }: &Keeper,
        network: &Network,
        request: FetchRequest,
        limit: u64,
    ) -> Result<(), Failure> {
        let lost = |why: String| {
            let why = format!("copies on {address}: {why}");
            Failure::refusal(FailureKind::PeerLost, why)
        };
        let expected = key.map(|key| Expected { role: Role::Worker, key: Some(key) });
        let channel = network.dial(address, expected).await;
        let channel = channel.map_err(|error| lost(with_causes(&error)))?;
        let mut client = CopiesClient::new(channel).max_decoding_message_size(MAX_PIECE_BYTES);
        let from = |status: Status| Failure::from_status(&status);
        let mut messages = client.fetch(request).await.map_err(from)?.into_inner();
        let mut assembler = Assembler::default();
        loop {
            let message = timeout(STALL, messages.message()).await;
            let message = message
                .map_err(|_| lost(format!("nothing came for {STATE_STALL_MS} ms")))?
                .map_err(from)?;
            let Some(message) = message else { return Err(lost("the stream ended early".into())) };
            match assembler.take(message)? {
                None => {}
                Some(Event::Item(item, bytes)) => {
                    self.nbytes += bytes.len() as u64;
                    self.fetched += bytes.len() as u64;
                    check_size(self.fetched, limit)?;
                    let head = assembler.head().ok_or_else(|| bad("copies without a head"))?;
                    let print = head.prints.get((item.layer - head.layers.start) as usize);
                    let found = self.blocks.entry((item.layer, item.block)).or_default();
                    (found.kind, found.print) = (head.kind, print.copied());
                    match item.what {
                        What::Pages { .. } => found.pages.push(bytes),
                        What::Rest { .. } => found.rest = bytes,
                    }
                }
                Some(Event::End(Some(_))) => return Ok(()),
                Some(Event::End(None) | Event::Forget(_)) => {
                    return Err(lost("they are not complete".into()));
                }
            }
        }
    }

    /// The bytes of a block, if they are of these weights and this kind.
    pub fn find(&self, layer: &LayerPrint, block: u32, kind: Kind) -> Option<BlockBytes<'_>> {
        let (layer, print) = layer;
        let found = self.blocks.get(&(*layer, block))?;
        let same = found.kind == kind && found.print.as_ref() == Some(print);
        same.then(|| (found.pages.iter().map(|run| &run[..]).collect(), &found.rest[..]))
    }
}

fn check_size(nbytes: u64, limit: u64) -> Result<(), Failure> {
    if nbytes <= limit {
        return Ok(());
    }
    Err(bad(format!("copies of {nbytes} bytes, a sequence has {limit} here at most")))
}

/// The copies that are wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The sequence's name.
    pub name: CopyName,
    /// The layers of the copies.
    pub layers: Range<u32>,
    /// The position of the copies.
    pub len: u32,
}

/// Copies as a stream of messages. It ends behind the last one, or when its reader has gone or has taken nothing for a while.
pub fn stream(pieces: Pieces) -> mpsc::Receiver<Result<CopyPart, Status>> {
    let (messages, receiver) = mpsc::channel(SEND_QUEUE);
    task::spawn(async move {
        let send = async |message: CopyPart| {
            matches!(timeout(STALL, messages.send(Ok(message))).await, Ok(Ok(())))
        };
        if !send(parts::head(&pieces.head)).await {
            return;
        }
        for (item, piece) in items(&pieces) {
            if !send(parts::announce(item, piece.len())).await {
                return;
            }
            for part in piece.parts(COPY_CHUNK_BYTES as u64) {
                let Ok(Ok(bytes)) = tokio::task::spawn_blocking(move || part.read()).await else {
                    let why = "a copy cannot be read any more";
                    let _ = messages.send(Err(Failure::refusal(FailureKind::Io, why).into())).await;
                    return;
                };
                if !send(parts::chunk(bytes)).await {
                    return;
                }
            }
        }
        send(parts::end(Some((pieces.len, pieces.mark)))).await;
    });
    receiver
}

fn items(pieces: &Pieces) -> Vec<(Item, Piece)> {
    let mut items = Vec::new();
    for of in &pieces.blocks {
        let item = |what| Item { layer: of.layer, block: of.block, paged: of.paged, what };
        let mut first = 0;
        for (n, piece) in &of.pages {
            items.push((item(What::Pages { first, n: *n }), piece.clone()));
            first += n;
        }
        if let Some(rest) = &of.rest {
            items.push((item(What::Rest { len: pieces.len }), rest.clone()));
        }
    }
    items.retain(|(_, piece)| !piece.is_empty());
    items
}
