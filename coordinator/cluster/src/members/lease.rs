//! Keeps the workers of a line while the line is being built.
//!
//! A worker whose coordinator is silent may be taken by another one. Hashing, sending and loading take minutes, and a
//! worker that is ready early has to wait for the others. So all of them get heartbeats during that time. Once the
//! line is up, its heartbeats do this.

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::members::conn::{Conn, HEARTBEAT};

/// Renews the lease on some workers until it is dropped.
#[derive(Debug)]
pub struct Lease {
    /// Aborted with the set.
    _renewals: JoinSet<()>,
}

impl Lease {
    /// Holds `conns` in `epoch`, from the time that each has accepted it.
    pub fn hold(conns: impl Iterator<Item = Conn>, epoch: u64) -> Self {
        let mut renewals = JoinSet::new();
        for conn in conns {
            renewals.spawn(async move {
                let mut beat = interval(HEARTBEAT);
                beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    beat.tick().await;
                    // The call that the line waits for will find out that the worker is silent.
                    if let Err(reason) = conn.health(epoch).await {
                        tracing::debug!(worker = conn.name(), reason, "the lease was not renewed");
                    }
                }
            });
        }
        Self { _renewals: renewals }
    }
}
