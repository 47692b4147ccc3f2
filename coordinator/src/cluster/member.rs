//! One worker the supervisor wants: where it comes from, whether it is connected, when to try
//! again.

use std::time::{Duration, Instant};

use brigade_proto::address::Address;

use super::conn::{Conn, WorkerError};
use super::local::{LocalOptions, LocalWorker};
use super::reconcile::MemberSeen;

/// Pause after the second failure in a row; it doubles with each further one. The first is
/// retried at once.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A member that was connected this long starts over with its pauses.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// Where a worker comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Our child, with its number.
    Local(usize),
    /// Named by the user.
    Remote(Address),
    /// Came by itself.
    Joined(Address),
}

impl Origin {
    /// Its name at this address.
    fn name(&self, address: &Address) -> String {
        match self {
            Self::Local(index) => format!("local worker {index} ({address})"),
            Self::Remote(_) | Self::Joined(_) => format!("worker {address}"),
        }
    }
}

/// A wanted worker.
#[derive(Debug)]
pub struct Member {
    /// Where it comes from.
    pub origin: Origin,
    child: Option<LocalWorker>,
    conn: Option<Conn>,
    /// Connected or absent since.
    since: Instant,
    retry_at: Instant,
    failures: u32,
}

/// What an attempt to connect brings.
#[derive(Debug)]
pub struct Connected {
    child: Option<LocalWorker>,
    conn: Conn,
}

impl Member {
    /// A member to be connected at once.
    pub fn new(origin: Origin) -> Self {
        let now = Instant::now();
        Self { origin, child: None, conn: None, since: now, retry_at: now, failures: 0 }
    }

    /// Its connection, if it is connected.
    pub fn conn(&self) -> Option<&Conn> {
        self.conn.as_ref()
    }

    /// Its process, if it is a child that runs.
    pub fn child_mut(&mut self) -> Option<&mut LocalWorker> {
        self.child.as_mut()
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// What [`super::reconcile`] sees of it.
    pub fn seen(&self, now: Instant) -> MemberSeen {
        match self.conn {
            Some(_) => MemberSeen::Connected,
            None => MemberSeen::Absent {
                retry_in: self.retry_at.saturating_duration_since(now),
                absent_for: now.saturating_duration_since(self.since),
                optional: !matches!(self.origin, Origin::Local(_)),
            },
        }
    }

    /// An attempt succeeded.
    pub fn connected(&mut self, connected: Connected) {
        tracing::info!(
            worker = connected.conn.name(),
            pid = connected.child.as_ref().and_then(LocalWorker::pid),
            kernels = connected.conn.capabilities().kernels,
            "worker connected"
        );
        self.child = connected.child;
        self.conn = Some(connected.conn);
        self.since = Instant::now();
    }

    /// It is gone, or an attempt failed. A child is killed: whatever state it is in, a new one is
    /// better.
    pub async fn lost(&mut self) {
        let now = Instant::now();
        if self.conn.take().is_some() {
            if now.duration_since(self.since) > STABLE_AFTER {
                self.failures = 0;
            }
            self.since = now;
        }
        self.retry_at = now + pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        if let Some(child) = self.child.take() {
            child.kill().await;
        }
    }

    /// It joined again, so that it is surely there.
    pub fn try_now(&mut self) {
        self.retry_at = Instant::now();
    }

    /// Ends a child in good order.
    pub async fn stop(mut self) {
        self.conn = None;
        if let Some(child) = self.child.take() {
            child.stop().await;
        }
    }
}

fn pause(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => FIRST_PAUSE.saturating_mul(1 << (n - 1).min(10)).min(LONGEST_PAUSE),
    }
}

/// Starts or dials a worker and shakes hands.
///
/// # Errors
/// [`WorkerError::Refused`] also where a child cannot be started at all.
pub async fn connect(
    origin: Origin,
    local: Option<LocalOptions>,
    coordinator_id: String,
    insecure_network: bool,
) -> Result<Connected, WorkerError> {
    let child = match (&origin, local) {
        (Origin::Local(index), Some(options)) => {
            let started = LocalWorker::start(&options, *index).await;
            Some(started.map_err(|e| WorkerError::Start { reason: e.to_string() })?)
        }
        _ => None,
    };
    let address = match (&origin, &child) {
        (_, Some(child)) => child.address().clone(),
        (Origin::Remote(address) | Origin::Joined(address), None) => address.clone(),
        (Origin::Local(index), None) => {
            let reason = format!("local worker {index} has no start options");
            return Err(WorkerError::Start { reason });
        }
    };
    let conn =
        Conn::open(&origin.name(&address), &address, &coordinator_id, insecure_network).await?;
    Ok(Connected { child, conn })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        assert_eq!(pause(0), Duration::ZERO);
        assert_eq!(pause(1), FIRST_PAUSE);
        assert_eq!(pause(3), FIRST_PAUSE * 4);
        assert_eq!(pause(60), LONGEST_PAUSE);
    }

    #[tokio::test]
    async fn a_lost_member_waits_longer_each_time() {
        let mut member = Member::new(Origin::Joined("127.0.0.1:1".parse().unwrap()));
        member.lost().await;
        let MemberSeen::Absent { retry_in, optional, .. } = member.seen(Instant::now()) else {
            panic!("it is absent");
        };
        assert!(retry_in.is_zero() && optional);
        member.lost().await;
        member.lost().await;
        let MemberSeen::Absent { retry_in, .. } = member.seen(Instant::now()) else {
            panic!("it is absent");
        };
        assert!(retry_in > FIRST_PAUSE);
    }
}
