//! Sends heartbeats to all connected members, also to spares, so that a spare's loss is known before it is
//! needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use brigade_proto::control::HealthReply;
use tokio::task::{AbortHandle, JoinSet};

use crate::members::conn::{Conn, WorkerError};
use crate::members::pulse::busy_share;
use crate::reconcile::MemberId;
use brigade_line::measured::metrics;

/// The tasks that send heartbeats, one for each connected member. A task ends when its member is lost.
#[derive(Debug, Default)]
pub struct Heartbeats {
    tasks: JoinSet<(MemberId, u64, WorkerError)>,
    /// The task that counts, and its number: one that was stopped may have ended just before.
    of: HashMap<MemberId, (u64, AbortHandle)>,
    next: u64,
    /// Microseconds that members have computed in an epoch, by their last heartbeats on a line.
    busy: Arc<Mutex<HashMap<MemberId, (u64, u64)>>>,
}

impl Heartbeats {
    /// Looks after a member that is not on the line.
    pub fn listen(&mut self, id: MemberId, conn: &Conn) {
        let conn = conn.clone();
        self.put(id, async move { conn.silence(0, |_| None).await });
    }

    /// Looks after a member on the line of `epoch`, renews its lease, and shows what it does. If it drains, it counts
    /// as lost ([`WorkerError::Busy`]).
    pub fn listen_on_line(&mut self, id: MemberId, conn: &Conn, epoch: u64, stage: usize) {
        self.on_line(id, conn, epoch, stage, true);
    }

    /// The same as [`Heartbeats::listen_on_line`], for a worker that is known to drain.
    pub fn listen_to_a_leaver(&mut self, id: MemberId, conn: &Conn, epoch: u64, stage: usize) {
        self.on_line(id, conn, epoch, stage, false);
    }

    fn on_line(&mut self, id: MemberId, conn: &Conn, epoch: u64, stage: usize, stays: bool) {
        let (conn, busy) = (conn.clone(), self.busy.clone());
        self.put(id, async move {
            let mut before: Option<HealthReply> = None;
            let lost = conn.silence(epoch, |now| {
                metrics::heartbeat(stage, now, busy_share(before.as_ref(), now));
                busy.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(id, (epoch, now.busy_us));
                before = Some(now.clone());
                (now.draining && stays).then(|| conn.drains())
            });
            lost.await
        });
    }

    fn put(&mut self, id: MemberId, heart: impl Future<Output = WorkerError> + Send + 'static) {
        self.stop(id);
        let number = self.next;
        self.next += 1;
        let handle =
            self.tasks.spawn(metrics::of_same_model(async move { (id, number, heart.await) }));
        self.of.insert(id, (number, handle));
    }

    /// Microseconds that a member has computed in `epoch`; `None`: its heartbeat has not said.
    pub fn busy_us(&self, id: MemberId, epoch: u64) -> Option<u64> {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.get(&id).filter(|(of, _)| *of == epoch).map(|(_, us)| *us)
    }

    /// Ends the heartbeats to this member.
    pub fn stop(&mut self, id: MemberId) {
        if let Some((_, handle)) = self.of.remove(&id) {
            handle.abort();
        }
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Ends all heartbeats.
    pub fn stop_all(&mut self) {
        self.tasks.abort_all();
    }

    /// The next member that is lost, and why; never, while all are there. Safe to drop and call again.
    pub async fn next_silent(&mut self) -> (MemberId, WorkerError) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((id, number, error))) => {
                    if self.of.get(&id).is_some_and(|(current, _)| *current == number) {
                        self.of.remove(&id);
                        return (id, error);
                    }
                }
                // One that was stopped.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}
