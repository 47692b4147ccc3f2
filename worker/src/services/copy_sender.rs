//! Sending copies beside the hot path: on a connection of their own, at a bounded rate, by a task that may be late.
//!
//! When the other end is lost while the lane goes on, its copies may be lost too: all sequences begin anew with their
//! first page.

use brigade_proto::task;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::control::CheckpointMode;
use brigade_proto::copies::copies_client::CopiesClient;
use brigade_proto::copies::{CopyPart, KeepOpen, KeepRequest, keep_request};
use brigade_proto::limits::MAX_PIECE_BYTES;
use brigade_proto::net::Network;
use brigade_proto::tls::Role;
use brigade_proto::tls::verify::Expected;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use crate::copies::disk::Disk;
use crate::copies::parts;
use crate::copies::taker::{Outbox, Outgoing, Taken};
use crate::records::BYTES_PER_SECOND;
use crate::records::folder::Home;
use crate::records::rate::Rate;
use crate::state::{LaneGrant, Worker};

/// Messages made and not yet taken by the transport.
const SEND_QUEUE: usize = 4;

/// Pause before a connection that was lost is made again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Starts the task that sends a lane's copies; `None` where none are taken.
pub fn start(worker: &Worker, grant: &LaneGrant) -> Option<Outbox> {
    let order = grant.order.checkpoints.as_ref()?;
    let restarts = Arc::<AtomicU64>::default();
    let copies = worker.copies();
    let (outbox, outgoing) =
        Outbox::new(copies.own.clone(), copies.buffers.clone(), restarts.clone());
    match (order.mode, &order.buddy) {
        (CheckpointMode::Buddy, Some(buddy)) => {
            let open =
                KeepOpen { epoch: grant.epoch, coordinator_id: grant.coordinator_id.clone() };
            let to = Buddy {
                address: buddy.clone(),
                expected: order
                    .buddy_key
                    .map(|key| Expected { role: Role::Worker, key: Some(key) }),
                network: worker.network().clone(),
                open,
                restarts,
            };
            task::spawn(to.run(outgoing, grant.cancel.clone()));
        }
        (CheckpointMode::Disk, _) => {
            let (disk, home) = (copies.disk(), copies.home.clone());
            tokio::task::spawn_blocking(move || write_all(disk.as_deref(), &home, outgoing));
        }
        _ => return None,
    }
    Some(outbox)
}

/// A worker that keeps this one's copies.
struct Buddy {
    address: Address,
    /// The identity that must answer there; `None`: a plain connection.
    expected: Option<Expected>,
    network: Network,
    open: KeepOpen,
    restarts: Arc<AtomicU64>,
}

impl Buddy {
    async fn run(self, mut outgoing: mpsc::UnboundedReceiver<Outgoing>, over: CancellationToken) {
        loop {
            let ended = tokio::select! {
                () = over.cancelled() => return,
                ended = self.send_all(&mut outgoing) => ended,
            };
            let Err(why) = ended else { return };
            self.restarts.fetch_add(1, Ordering::Relaxed);
            while outgoing.try_recv().is_ok() {}
            tokio::select! {
                () = over.cancelled() => return,
                () = sleep(AGAIN_AFTER) => {}
            }
            // A lost line would be over by now, and its copies not needed.
            tracing::warn!(buddy = %self.address, why, "checkpoints were not kept: trying again");
        }
    }

    /// `Ok` when there is nothing more to send.
    async fn send_all(
        &self,
        outgoing: &mut mpsc::UnboundedReceiver<Outgoing>,
    ) -> Result<(), String> {
        let channel = self.network.dial(&self.address, self.expected);
        let channel = channel.await.map_err(|error| error.to_string())?;
        let mut client = CopiesClient::new(channel).max_encoding_message_size(MAX_PIECE_BYTES);
        let (messages, stream) = mpsc::channel(SEND_QUEUE);
        let open = KeepRequest { part: Some(keep_request::Part::Open(self.open.clone())) };
        messages.send(open).await.map_err(|_| "it was not opened".to_owned())?;
        let call = client.keep(ReceiverStream::new(stream));
        tokio::select! {
            () = pump(outgoing, messages) => Ok(()),
            ended = call => Err(match ended {
                Ok(_) => "it ended the stream".to_owned(),
                Err(status) => status.message().to_owned(),
            }),
        }
    }
}

/// Sends until nothing more comes or the receiver is gone. In the latter case it waits for the call's end, which has
/// the reason.
async fn pump(
    outgoing: &mut mpsc::UnboundedReceiver<Outgoing>,
    messages: mpsc::Sender<KeepRequest>,
) {
    let rate = Rate::new(BYTES_PER_SECOND);
    while let Some(next) = outgoing.recv().await {
        let all: Box<dyn Iterator<Item = CopyPart> + Send> = match next {
            Outgoing::Forget(name, _) => Box::new(std::iter::once(parts::forget(name))),
            Outgoing::Copy(taken) => Box::new(of_copy(*taken)),
        };
        for copy in all {
            let request = KeepRequest { part: Some(keep_request::Part::Copy(copy)) };
            let nbytes = request.encoded_len();
            if messages.send(request).await.is_err() {
                return std::future::pending().await;
            }
            if let Some(then) = rate.sent(nbytes) {
                sleep_until(then).await;
            }
        }
    }
}

fn of_copy(taken: Taken) -> impl Iterator<Item = CopyPart> + Send {
    let (head, end) = (parts::head(&taken.head), parts::end(taken.at));
    // Its room is free again when all of it is sent.
    let items = taken.into_items().flat_map(|(item, bytes)| parts::item(item, bytes));
    std::iter::once(head).chain(items).chain(std::iter::once(end))
}

/// Writes until the lane is over. A disk that fails is told of once; copies are lost then, and nothing else.
fn write_all(disk: Option<&Disk>, home: &Home, mut outgoing: mpsc::UnboundedReceiver<Outgoing>) {
    let mut told = disk.is_none();
    while let Some(next) = outgoing.blocking_recv() {
        let Some(disk) = disk else { continue };
        let written = match next {
            Outgoing::Forget(name, layers) => {
                disk.forget(name, &layers);
                Ok(0)
            }
            Outgoing::Copy(taken) => disk.write(&taken),
        };
        match written {
            Ok(nbytes) => {
                if let Some(then) = home.rate.sent(nbytes) {
                    std::thread::sleep(then.saturating_duration_since(Instant::now()));
                }
            }
            Err(error) if !told => {
                told = true;
                tracing::warn!(%error, "checkpoints cannot be written; streams are computed again instead");
            }
            Err(_) => {}
        }
    }
}
