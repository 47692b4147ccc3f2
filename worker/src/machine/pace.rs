//! Limits how many calls of strangers are answered a second. Everything that a worker receives and sends goes
//! through one thread. Calls that cost a peer nothing would otherwise take that thread from the lane. The
//! coordinator that holds the worker never waits here.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{
    MAX_PEERS, STRANGER_BURST, STRANGER_CALLS_PER_SECOND, STRANGER_WAIT_MS,
};
use brigade_proto::net::Peer;

/// Time that one call takes from its address's share.
const STEP: Duration = Duration::from_micros(1_000_000 / STRANGER_CALLS_PER_SECOND as u64);
/// A share that has been left alone this long is whole.
const WHOLE: Duration = STEP.saturating_mul(STRANGER_BURST);
/// Longest wait for a turn.
const WAIT: Duration = Duration::from_millis(STRANGER_WAIT_MS);

/// The turns of all addresses.
#[derive(Debug, Default)]
pub struct Pace {
    /// When each address's share is whole again; an address whose share is whole is not kept.
    shares: Mutex<HashMap<Option<Peer>, Instant>>,
}

impl Pace {
    /// Waits until a call from `peer` has its turn.
    ///
    /// # Errors
    /// Busy, late, where too many wait.
    pub async fn turn(&self, peer: Option<Peer>) -> Result<(), Failure> {
        match self.wait(peer, Instant::now()) {
            Some(Duration::ZERO) => Ok(()),
            Some(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            None => {
                // A quick refusal would only be followed by the next call.
                tokio::time::sleep(WAIT).await;
                let why = format!(
                    "too many calls: this worker answers {STRANGER_CALLS_PER_SECOND} a second from \
                     an address that does not hold it; try again"
                );
                Err(Failure::refusal(FailureKind::Busy, why))
            }
        }
    }

    /// Time until the next turn of `peer`, which is taken; `None` where it is too far away.
    fn wait(&self, peer: Option<Peer>, now: Instant) -> Option<Duration> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if shares.len() >= MAX_PEERS && !shares.contains_key(&peer) {
            shares.retain(|_, whole_at| *whole_at > now);
            if shares.len() >= MAX_PEERS {
                return None;
            }
        }
        let whole_at = shares.get(&peer).map_or(now, |at| (*at).max(now));
        let wait = (whole_at + STEP).saturating_duration_since(now + WHOLE);
        if wait > WAIT {
            return None;
        }
        shares.insert(peer, whole_at + STEP);
        Some(wait)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    fn peer(n: u32) -> Option<Peer> {
        Some(Peer::Ip(IpAddr::V4(Ipv4Addr::from(n))))
    }

    #[test]
    fn a_flood_gets_its_rate_and_no_more() {
        let (pace, t0) = (Pace::default(), Instant::now());
        let taken = |from: Instant| {
            let waits = (0..10_000).filter_map(|_| pace.wait(peer(1), from));
            waits.fold((0, Duration::ZERO), |(n, longest), wait| (n + 1, longest.max(wait)))
        };
        // The burst, and the calls that have their turn within the wait.
        let (n, longest) = taken(t0);
        assert_eq!(n, STRANGER_BURST + WAIT.as_millis() as u32 / STEP.as_millis() as u32);
        assert_eq!(longest, WAIT);
        let (n, _) = taken(t0 + Duration::from_secs(1));
        assert_eq!(n, STRANGER_CALLS_PER_SECOND);
    }

    #[test]
    fn a_peer_beside_a_flood_does_not_wait() {
        let (pace, t0) = (Pace::default(), Instant::now());
        assert_eq!((0..10_000).filter_map(|_| pace.wait(peer(1), t0)).count(), 300);
        assert_eq!(pace.wait(peer(2), t0), Some(Duration::ZERO));
        assert_eq!(pace.wait(None, t0), Some(Duration::ZERO));
    }

    #[test]
    fn few_addresses_are_remembered() {
        let (pace, t0) = (Pace::default(), Instant::now());
        let n = (0..10 * MAX_PEERS as u32).filter(|n| pace.wait(peer(*n), t0).is_some()).count();
        assert_eq!(n, MAX_PEERS);
        assert_eq!(pace.wait(peer(1 << 30), t0 + WHOLE), Some(Duration::ZERO));
        assert_eq!(pace.shares.lock().unwrap().len(), 1);
    }
}
