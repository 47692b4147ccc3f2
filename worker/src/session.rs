//! Who holds this worker, in which epoch, and what may be called when. Pure: the clock is passed
//! in, nothing is loaded or sent here.
//!
//! A coordinator takes the worker with Prepare and keeps it by being heard from; an epoch is one
//! attempt at running a line, and every call and frame carries it, so that what belongs to a past
//! attempt is told so.

use std::time::{Duration, Instant};

use brigade_proto::control::Phase;
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{LEASE_MS, MAX_NAME_BYTES};

/// Silence after which another coordinator may take the worker.
pub const LEASE: Duration = Duration::from_millis(LEASE_MS);

/// The worker's place in its life.
#[derive(Debug)]
pub struct Session {
    owner: Option<Owner>,
    epoch: u64,
    last_epoch: u64,
    phase: Phase,
    failure: Option<Failure>,
    draining: bool,
}

#[derive(Debug)]
struct Owner {
    coordinator_id: String,
    heard: Instant,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            owner: None,
            epoch: 0,
            last_epoch: 0,
            phase: Phase::Idle,
            failure: None,
            draining: false,
        }
    }
}

/// What a successful [`Session::prepare`] means for what runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The same epoch again, with more facts; nothing runs yet.
    Again,
    /// A new epoch: whatever lane was open belongs to the past.
    NewEpoch,
}

impl Session {
    /// Current epoch; 0 when no one holds the worker.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Highest epoch ever accepted.
    pub fn last_epoch(&self) -> u64 {
        self.last_epoch
    }

    /// Where in its life the worker is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Why the epoch ended, in phase Failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// True after [`Session::drain`].
    pub fn draining(&self) -> bool {
        self.draining
    }

    /// The coordinator that holds the worker.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_ref().map(|owner| owner.coordinator_id.as_str())
    }

    /// True if a coordinator holds the worker and was heard from within the lease.
    pub fn is_held(&self, now: Instant) -> bool {
        self.owner.as_ref().is_some_and(|owner| now.duration_since(owner.heard) < LEASE)
    }

    /// Takes the worker for `coordinator_id` in `epoch`.
    ///
    /// # Errors
    /// Draining, Busy (another coordinator within its lease), StaleEpoch (not above the last one).
    pub fn prepare(
        &mut self,
        now: Instant,
        coordinator_id: &str,
        epoch: u64,
    ) -> Result<Taken, Failure> {
        if self.draining {
            return Err(refuse(FailureKind::Draining, "this worker is draining: use another"));
        }
        if coordinator_id.is_empty() || coordinator_id.len() > MAX_NAME_BYTES {
            let why = format!("coordinator_id must have 1 to {MAX_NAME_BYTES} bytes");
            return Err(refuse(FailureKind::BadMessage, why));
        }
        self.check_free_for(now, coordinator_id)?;
        let ours = self.owner() == Some(coordinator_id);
        if ours && epoch == self.epoch && self.phase == Phase::Prepared {
            self.hear(now);
            return Ok(Taken::Again);
        }
        if epoch <= self.last_epoch {
            return Err(self.stale(epoch));
        }
        self.owner = Some(Owner { coordinator_id: coordinator_id.to_owned(), heard: now });
        self.epoch = epoch;
        self.last_epoch = epoch;
        self.phase = Phase::Prepared;
        self.failure = None;
        Ok(Taken::NewEpoch)
    }

    fn check_free_for(&self, now: Instant, coordinator_id: &str) -> Result<(), Failure> {
        let Some(owner) = &self.owner else { return Ok(()) };
        if owner.coordinator_id == coordinator_id || !self.is_held(now) {
            return Ok(());
        }
        let silent_ms = now.duration_since(owner.heard).as_millis();
        let why = format!(
            "busy: coordinator {} holds this worker in epoch {} and was heard from {silent_ms} ms \
             ago; it is free {LEASE_MS} ms after it falls silent, or when it unloads",
            owner.coordinator_id, self.epoch
        );
        Err(refuse(FailureKind::Busy, why))
    }

    /// Checks that a call belongs to the current holder and epoch, and renews the lease.
    ///
    /// # Errors
    /// Busy or StaleEpoch.
    pub fn check(&mut self, now: Instant, coordinator_id: &str, epoch: u64) -> Result<(), Failure> {
        if self.owner() != Some(coordinator_id) {
            let holder = self.owner().unwrap_or("no one").to_owned();
            let why = format!(
                "coordinator {coordinator_id} does not hold this worker ({holder} does): \
                 call Prepare first"
            );
            return Err(refuse(FailureKind::Busy, why));
        }
        if epoch != self.epoch {
            return Err(self.stale(epoch));
        }
        self.hear(now);
        Ok(())
    }

    /// As [`Session::check`], and the phase must be `phase`.
    ///
    /// # Errors
    /// Busy, StaleEpoch or WrongPhase; in phase Failed, the failure.
    pub fn check_phase(
        &mut self,
        now: Instant,
        coordinator_id: &str,
        epoch: u64,
        phase: Phase,
    ) -> Result<(), Failure> {
        self.check(now, coordinator_id, epoch)?;
        if self.phase == phase {
            return Ok(());
        }
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let (is, needs) = (self.phase.as_str_name(), phase.as_str_name());
        let why = format!("epoch {epoch} is in {is}, this call needs {needs}");
        Err(refuse(FailureKind::WrongPhase, why))
    }

    /// Renews the lease if the call is from the holder; any other caller is just looking.
    pub fn heartbeat(&mut self, now: Instant, coordinator_id: &str, epoch: u64) {
        if self.owner() == Some(coordinator_id) && epoch == self.epoch {
            self.hear(now);
        }
    }

    /// Moves on within an epoch; a past epoch changes nothing and returns false.
    pub fn advance(&mut self, epoch: u64, phase: Phase) -> bool {
        let current = epoch == self.epoch && self.phase != Phase::Failed;
        if current {
            self.phase = phase;
        }
        current
    }

    /// Ends the epoch with a reason; the first reason stays.
    pub fn fail(&mut self, epoch: u64, failure: Failure) {
        if self.advance(epoch, Phase::Failed) {
            self.failure = Some(failure);
        }
    }

    /// Gives the worker back.
    pub fn release(&mut self) {
        self.owner = None;
        self.epoch = 0;
        self.phase = Phase::Idle;
        self.failure = None;
    }

    /// Refuses every new epoch from now on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    fn hear(&mut self, now: Instant) {
        if let Some(owner) = &mut self.owner {
            owner.heard = now;
        }
    }

    fn stale(&self, epoch: u64) -> Failure {
        let why = format!(
            "epoch {epoch} is over: this worker is at epoch {} (last accepted {}); start a higher \
             one",
            self.epoch, self.last_epoch
        );
        refuse(FailureKind::StaleEpoch, why)
    }
}

fn refuse(kind: FailureKind, why: impl Into<String>) -> Failure {
    Failure::refusal(kind, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(result: Result<impl std::fmt::Debug, Failure>) -> FailureKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn a_second_coordinator_waits_for_the_lease() {
        let (mut session, t0) = (Session::default(), Instant::now());
        session.prepare(t0, "a", 1).unwrap();
        let soon = t0 + LEASE - Duration::from_millis(1);
        assert_eq!(kind(session.prepare(soon, "b", 2)), FailureKind::Busy);
        session.heartbeat(soon, "a", 1);
        assert_eq!(kind(session.prepare(t0 + LEASE, "b", 2)), FailureKind::Busy);
        assert_eq!(session.prepare(soon + LEASE, "b", 2), Ok(Taken::NewEpoch));
        assert_eq!(kind(session.check(soon + LEASE, "a", 1)), FailureKind::Busy);
    }

    #[test]
    fn looking_does_not_renew_a_lease() {
        let (mut session, t0) = (Session::default(), Instant::now());
        session.prepare(t0, "a", 1).unwrap();
        session.heartbeat(t0 + LEASE, "b", 1);
        session.heartbeat(t0 + LEASE, "a", 0);
        assert!(!session.is_held(t0 + LEASE));
    }

    #[test]
    fn epochs_only_rise_even_after_release() {
        let (mut session, t0) = (Session::default(), Instant::now());
        session.prepare(t0, "a", 7).unwrap();
        session.release();
        assert_eq!(kind(session.prepare(t0, "a", 7)), FailureKind::StaleEpoch);
        assert_eq!(session.prepare(t0, "a", 8), Ok(Taken::NewEpoch));
        assert_eq!(kind(session.check(t0, "a", 7)), FailureKind::StaleEpoch);
    }

    #[test]
    fn the_same_epoch_can_be_prepared_again_until_it_loads() {
        let (mut session, t0) = (Session::default(), Instant::now());
        session.prepare(t0, "a", 1).unwrap();
        assert_eq!(session.prepare(t0, "a", 1), Ok(Taken::Again));
        assert!(session.advance(1, Phase::Loading));
        assert_eq!(kind(session.prepare(t0, "a", 1)), FailureKind::StaleEpoch);
    }

    #[test]
    fn a_failed_epoch_repeats_its_first_reason() {
        let (mut session, t0) = (Session::default(), Instant::now());
        session.prepare(t0, "a", 1).unwrap();
        session.fail(1, Failure::new(FailureKind::Compute, 2, "first"));
        session.fail(1, Failure::new(FailureKind::PeerLost, 0, "second"));
        assert!(!session.advance(1, Phase::Ready));
        let failure = session.check_phase(t0, "a", 1, Phase::Ready).unwrap_err();
        assert_eq!((failure.kind(), failure.reason.as_str()), (FailureKind::Compute, "first"));
    }

    #[test]
    fn a_past_epochs_end_does_not_touch_the_present() {
        let (mut session, t0) = (Session::default(), Instant::now());
        session.prepare(t0, "a", 1).unwrap();
        session.prepare(t0, "a", 2).unwrap();
        session.fail(1, Failure::new(FailureKind::PeerLost, 0, "late"));
        assert_eq!(session.phase(), Phase::Prepared);
    }

    #[test]
    fn a_draining_worker_takes_nothing_new() {
        let mut session = Session::default();
        session.drain();
        assert_eq!(kind(session.prepare(Instant::now(), "a", 1)), FailureKind::Draining);
    }
}
