//! Heartbeats of all connected members, on the line and off it: a spare that left should be known before it
//! is needed.

use std::collections::HashMap;

use brigade_proto::control::HealthReply;
use tokio::task::{AbortHandle, JoinSet};

use super::conn::{Conn, WorkerError};
use super::reconcile::MemberId;
use crate::metrics;

/// One task a connected member, which ends when the member is lost.
#[derive(Debug, Default)]
pub struct Hearts {
    tasks: JoinSet<(MemberId, u64, WorkerError)>,
    of: HashMap<MemberId, AbortHandle>,
}

impl Hearts {
    /// Looks after a member that is not on the line.
    pub fn listen(&mut self, id: MemberId, serial: u64, conn: &Conn) {
        let conn = conn.clone();
        self.put(id, async move { (id, serial, conn.silence(0, |_| {}).await) });
    }

    /// Looks after a member on the line of `epoch`, renews its lease, and shows what it does.
    pub fn listen_on_line(
        &mut self,
        id: MemberId,
        serial: u64,
        conn: &Conn,
        epoch: u64,
        stage: usize,
    ) {
        let conn = conn.clone();
        self.put(id, async move {
            let mut before: Option<HealthReply> = None;
            let lost = conn.silence(epoch, |now| {
                metrics::heartbeat(stage, now, busy_share(before.as_ref(), now));
                before = Some(now.clone());
            });
            (id, serial, lost.await)
        });
    }

    fn put(
        &mut self,
        id: MemberId,
        heart: impl Future<Output = (MemberId, u64, WorkerError)> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(heart);
        if let Some(before) = self.of.insert(id, handle) {
            before.abort();
        }
    }

    /// Nobody looks after this member any more.
    pub fn stop(&mut self, id: MemberId) {
        if let Some(handle) = self.of.remove(&id) {
            handle.abort();
        }
    }

    /// Nobody looks after anybody.
    pub fn stop_all(&mut self) {
        self.tasks.abort_all();
    }

    /// The next member that is lost, the number of its connection, and why; never, while all are there.
    /// Safe to drop and call again.
    pub async fn next_silent(&mut self) -> (MemberId, u64, WorkerError) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(silent)) => return silent,
                // One that was stopped.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

/// Share of the time between two heartbeats that a stage computed.
fn busy_share(before: Option<&HealthReply>, now: &HealthReply) -> f64 {
    let before = before.filter(|b| b.epoch == now.epoch);
    let wall = now.lane_us.saturating_sub(before.map_or(0, |b| b.lane_us));
    let busy = now.busy_us.saturating_sub(before.map_or(0, |b| b.busy_us));
    if wall == 0 { 0.0 } else { busy as f64 / wall as f64 }
}
