//! Copies of a sequence's state that go from one worker to another.
//!
//! A line keeps copies of states so that a sequence can go on after a worker was lost: it is then **put back**, which means that
//! stages read its state from copies. A copy has pieces for each layer and block. The other direction, a stream of this worker's
//! copies for another one, is at the end.

use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::copies::copies_client::CopiesClient;
use brigade_proto::copies::{CopyPart, FetchRequest};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{MAX_PIECE_BYTES, STATE_STALL_MS};
use brigade_proto::net::{Network, with_causes};
use brigade_proto::task;
use brigade_proto::tls::verify::Expected;
use brigade_proto::tls::{KeyId, Role};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use super::parts::{self, Assembler, Event, MAX_ITEM_BYTES, bad};
use super::source::{Source, check_room};
use super::store::{Head, Item};

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

/// Bytes of copies that are read at once for another worker.
const SEND_BYTES: u64 = 1 << 20;

/// Patience with the other end of a transfer.
const STALL: Duration = Duration::from_millis(STATE_STALL_MS);

/// Copies on their way from another worker.
pub struct Fetching {
    address: Address,
    messages: Streaming<CopyPart>,
    assembler: Assembler,
}

impl Fetching {
    /// Asks a worker for copies.
    ///
    /// # Errors
    /// The other worker cannot be reached, or refuses.
    pub async fn begin(
        keeper: Keeper,
        network: &Network,
        request: FetchRequest,
    ) -> Result<Self, Failure> {
        let Keeper { address, key } = keeper;
        let expected = key.map(|key| Expected { role: Role::Worker, key: Some(key) });
        let channel = network.dial(&address, expected).await;
        let channel = channel.map_err(|error| lost(&address, &with_causes(&error)))?;
        let mut client = CopiesClient::new(channel).max_decoding_message_size(MAX_PIECE_BYTES);
        let messages = client.fetch(request).await;
        let messages = messages.map_err(|status| Failure::from_status(&status))?.into_inner();
        Ok(Self { address, messages, assembler: Assembler::default() })
    }

    /// The next item, with the head of its copies; `None`: all have come.
    ///
    /// # Errors
    /// The other worker is lost, has the copies no more, or sends something else. NoMemory for an item of more than `most`
    /// bytes, before they come.
    pub async fn next(&mut self, most: u64) -> Result<Option<(&Head, Item, Bytes)>, Failure> {
        let lost = |why: &str| lost(&self.address, why);
        let (item, bytes) = loop {
            let message = timeout(STALL, self.messages.message()).await;
            let message = message
                .map_err(|_| lost(&format!("nothing came for {STATE_STALL_MS} ms")))?
                .map_err(|status| Failure::from_status(&status))?;
            let message = message.ok_or_else(|| lost("the stream ended early"))?;
            match self.assembler.take(message)? {
                None => check_room(self.assembler.announced(), most)?,
                Some(Event::Item(item, bytes)) => break (item, bytes),
                Some(Event::End(Some(_))) => return Ok(None),
                Some(Event::End(None) | Event::Forget(_)) => {
                    return Err(lost("they are not complete"));
                }
            }
        };
        let head = self.assembler.head().ok_or_else(|| bad("copies without a head"))?;
        Ok(Some((head, item, bytes)))
    }
}

fn lost(address: &Address, why: &str) -> Failure {
    Failure::refusal(FailureKind::PeerLost, format!("copies on {address}: {why}"))
}

/// Copies as a stream of messages. It ends behind the last one, or when its reader has gone or has taken nothing for a while.
pub fn stream(mut source: Box<dyn Source>) -> mpsc::Receiver<Result<CopyPart, Status>> {
    let (messages, receiver) = mpsc::channel(SEND_QUEUE);
    task::spawn(async move {
        let send = async |message: CopyPart| {
            matches!(timeout(STALL, messages.send(Ok(message))).await, Ok(Ok(())))
        };
        if !send(parts::head(source.head())).await {
            return;
        }
        loop {
            let read = tokio::task::spawn_blocking(move || {
                let part = source.next(SEND_BYTES, MAX_ITEM_BYTES);
                (source, part)
            });
            // The thread does not panic, and the runtime runs.
            let Ok((back, part)) = read.await else { return };
            source = back;
            let part = match part {
                Ok(part) => part,
                Err(failure) => {
                    // The reader may have gone, or read no more.
                    let _ = timeout(STALL, messages.send(Err(failure.into()))).await;
                    return;
                }
            };
            if part.is_empty() {
                break;
            }
            for message in part.into_iter().flat_map(|(item, bytes)| parts::item(item, bytes)) {
                if !send(message).await {
                    return;
                }
            }
        }
        send(parts::end(Some(source.position()))).await;
    });
    receiver
}
