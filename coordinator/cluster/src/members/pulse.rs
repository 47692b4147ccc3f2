//! A worker's last heartbeat and the time at which it came.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brigade_proto::control::HealthReply;

/// The last heartbeat; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<Mutex<Option<Beat>>>);

/// The worker's answer to a heartbeat.
#[derive(Clone, Debug)]
pub struct Beat {
    at: Instant,
    reply: HealthReply,
    /// Share of the time since the one before in which its stage computed.
    pub busy: f64,
}

impl Beat {
    /// How long ago it came.
    pub fn ago(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }

    /// The worker's answer.
    pub fn reply(&self) -> &HealthReply {
        &self.reply
    }
}

impl Pulse {
    fn lock(&self) -> MutexGuard<'_, Option<Beat>> {
        // A panic elsewhere leaves a whole beat behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a heartbeat that came.
    pub fn beat(&self, at: Instant, reply: &HealthReply) {
        let mut last = self.lock();
        let before = last.as_ref().map(|beat| &beat.reply);
        let busy = busy_share(before, reply);
        *last = Some(Beat { at, reply: reply.clone(), busy });
    }

    /// The last one; `None` before the first.
    pub fn last(&self) -> Option<Beat> {
        self.lock().clone()
    }
}

/// Share of the time between two heartbeats that a stage computed.
pub fn busy_share(before: Option<&HealthReply>, now: &HealthReply) -> f64 {
    let before = before.filter(|b| b.epoch == now.epoch);
    let wall = now.lane_us.saturating_sub(before.map_or(0, |b| b.lane_us));
    let busy = now.busy_us.saturating_sub(before.map_or(0, |b| b.busy_us));
    if wall == 0 { 0.0 } else { busy as f64 / wall as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_tells_its_age_and_the_share_since_the_one_before() {
        let (pulse, begin) = (Pulse::default(), Instant::now());
        assert!(pulse.last().is_none());
        let reply = |epoch, busy_us, lane_us| HealthReply {
            epoch,
            busy_us,
            lane_us,
            ..HealthReply::default()
        };
        let second = Duration::from_secs(1);
        pulse.beat(begin, &reply(1, 500, 1000));
        pulse.beat(begin + second, &reply(1, 1250, 2000));
        let beat = pulse.last().unwrap();
        assert_eq!((beat.busy, beat.ago(begin + 3 * second)), (0.75, 2 * second));
        pulse.beat(begin, &reply(2, 100, 1000));
        assert_eq!(pulse.last().unwrap().busy, 0.1, "another line counts by itself");
    }
}
