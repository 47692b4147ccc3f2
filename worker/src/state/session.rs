//! The session: the coordinator that holds this worker, the epoch, and the calls that are allowed in each phase. This
//! is pure: the clock is passed in, and nothing is loaded or sent here.
//!
//! A coordinator takes the worker with Prepare, and keeps it with every call. An epoch is one attempt at running a
//! line. Every call and every frame carries its number, so that calls of a past attempt are refused as stale. Epochs
//! are compared only with others of the same coordinator. So a coordinator cannot use up the numbers of another one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use brigade_proto::control::Phase;
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{LEASE_MS, MAX_EPOCH_STEP, MAX_NAME_BYTES, MAX_PAST_OWNERS};
use brigade_proto::tls::party::holder_name;

/// Silence after which another coordinator may take the worker.
pub const LEASE: Duration = Duration::from_millis(LEASE_MS);

/// The worker's place in its life.
#[derive(Debug)]
pub struct Session {
    owner: Option<Owner>,
    epoch: u64,
    /// The highest epoch of each coordinator that has held this worker, the latest one last.
    past: VecDeque<(String, u64)>,
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
            past: VecDeque::new(),
            phase: Phase::Idle,
            failure: None,
            draining: false,
        }
    }
}

/// The effect of a successful [`Session::prepare`] on a running lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The same epoch again, with more facts; nothing runs yet.
    Again,
    /// A new epoch: an open lane belongs to the past and must end.
    NewEpoch,
}

impl Session {
    /// Current epoch; 0 when no one holds the worker.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Highest epoch accepted from `coordinator_id`; 0: none, or too many others have held the worker
    /// since.
    pub fn last_epoch(&self, coordinator_id: &str) -> u64 {
        let of_it = self.past.iter().find(|(id, _)| id == coordinator_id);
        of_it.map_or(0, |(_, epoch)| *epoch)
    }

    /// Whether `epoch` of `coordinator_id` is the one that runs.
    pub fn is_at(&self, coordinator_id: &str, epoch: u64) -> bool {
        self.owner() == Some(coordinator_id) && epoch == self.epoch
    }

    /// Where in its life the worker is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Why the epoch ended, in phase Failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Whether the worker takes no new epochs, after [`Session::drain`].
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
    /// Draining, Busy (another coordinator within its lease), StaleEpoch (not above this coordinator's
    /// last one), BadMessage (far above it).
    pub fn prepare(
        &mut self,
        now: Instant,
        coordinator_id: &str,
        epoch: u64,
    ) -> Result<Taken, Failure> {
        self.check_free_for(now, coordinator_id)?;
        if self.is_at(coordinator_id, epoch) && self.phase == Phase::Prepared {
            self.hear(now);
            return Ok(Taken::Again);
        }
        self.begin(now, coordinator_id, epoch, Phase::Prepared)?;
        Ok(Taken::NewEpoch)
    }

    /// Takes the worker that `coordinator_id` holds into `epoch` without layers; it may drain.
    ///
    /// # Errors
    /// Busy where it does not hold it; StaleEpoch or BadMessage as [`Self::prepare`]'s.
    pub fn retire(
        &mut self,
        now: Instant,
        coordinator_id: &str,
        epoch: u64,
    ) -> Result<(), Failure> {
        self.check_owner(coordinator_id)?;
        self.begin(now, coordinator_id, epoch, Phase::Closed)
    }

    fn begin(
        &mut self,
        now: Instant,
        coordinator_id: &str,
        epoch: u64,
        phase: Phase,
    ) -> Result<(), Failure> {
        let last = self.last_epoch(coordinator_id);
        if epoch <= last {
            return Err(self.stale(coordinator_id, epoch));
        }
        if epoch - last > MAX_EPOCH_STEP {
            let why = format!(
                "epoch {epoch} is more than {MAX_EPOCH_STEP} above {last}, this coordinator's last \
                 one here: start a lower one"
            );
            return Err(refuse(FailureKind::BadMessage, why));
        }
        self.owner = Some(Owner { coordinator_id: coordinator_id.to_owned(), heard: now });
        self.remember(coordinator_id, epoch);
        self.epoch = epoch;
        self.phase = phase;
        self.failure = None;
        Ok(())
    }

    fn remember(&mut self, coordinator_id: &str, epoch: u64) {
        self.past.retain(|(id, _)| id != coordinator_id);
        if self.past.len() > MAX_PAST_OWNERS {
            self.past.pop_front();
        }
        self.past.push_back((coordinator_id.to_owned(), epoch));
    }

    /// Checks that `coordinator_id` may take the worker.
    ///
    /// # Errors
    /// Draining, Busy, or BadMessage for an invalid name.
    pub fn check_free_for(&self, now: Instant, coordinator_id: &str) -> Result<(), Failure> {
        if self.draining {
            return Err(refuse(FailureKind::Draining, "this worker is draining: use another"));
        }
        if coordinator_id.is_empty() || coordinator_id.len() > MAX_NAME_BYTES {
            let why = format!("coordinator_id must have 1 to {MAX_NAME_BYTES} bytes");
            return Err(refuse(FailureKind::BadMessage, why));
        }
        let Some(owner) = &self.owner else { return Ok(()) };
        if owner.coordinator_id == coordinator_id || !self.is_held(now) {
            return Ok(());
        }
        let silent_ms = now.duration_since(owner.heard).as_millis();
        let why = format!(
            "coordinator {} holds this worker in epoch {} and was heard from {silent_ms} ms \
             ago; it is free {LEASE_MS} ms after it falls silent, or when it unloads",
            shown(&owner.coordinator_id),
            self.epoch
        );
        Err(refuse(FailureKind::Busy, why))
    }

    /// Checks that a call belongs to the current holder and epoch, and renews the lease.
    ///
    /// # Errors
    /// Busy or StaleEpoch.
    pub fn check(&mut self, now: Instant, coordinator_id: &str, epoch: u64) -> Result<(), Failure> {
        self.check_owner(coordinator_id)?;
        if epoch != self.epoch {
            return Err(self.stale(coordinator_id, epoch));
        }
        self.hear(now);
        Ok(())
    }

    fn check_owner(&self, coordinator_id: &str) -> Result<(), Failure> {
        if self.owner() == Some(coordinator_id) {
            return Ok(());
        }
        let holder = self.owner().map_or_else(|| "no one".to_owned(), shown);
        let why = format!(
            "coordinator {} does not hold this worker ({holder} does): \
             call Prepare first",
            shown(coordinator_id)
        );
        Err(refuse(FailureKind::Busy, why))
    }

    /// The same as [`Session::check`], and the phase must be `phase`.
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
        if self.is_at(coordinator_id, epoch) {
            self.hear(now);
        }
    }

    /// Moves on within an epoch; a past epoch changes nothing and returns false.
    pub fn advance(&mut self, coordinator_id: &str, epoch: u64, phase: Phase) -> bool {
        let current = self.is_at(coordinator_id, epoch) && self.phase != Phase::Failed;
        if current {
            self.phase = phase;
        }
        current
    }

    /// Ends the epoch with a reason; the first reason stays.
    pub fn fail(&mut self, coordinator_id: &str, epoch: u64, failure: Failure) {
        if self.advance(coordinator_id, epoch, Phase::Failed) {
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

    fn stale(&self, coordinator_id: &str, epoch: u64) -> Failure {
        let why = format!(
            "epoch {epoch} is over: this worker is at epoch {} (last accepted of this coordinator \
             {}); start a higher one",
            self.epoch,
            self.last_epoch(coordinator_id)
        );
        refuse(FailureKind::StaleEpoch, why)
    }
}

fn refuse(kind: FailureKind, why: impl Into<String>) -> Failure {
    Failure::refusal(kind, why)
}

/// Characters of a coordinator's id that others are told: enough to find it in a log, not enough to
/// speak in its name.
const SHORT_ID: usize = 8;

/// A coordinator's name as others may see it: the name of its certificate, or the beginning of its id.
pub fn shown(coordinator_id: &str) -> String {
    holder_name(coordinator_id).unwrap_or_else(|| coordinator_id.chars().take(SHORT_ID).collect())
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
    fn a_coordinator_has_a_name_and_no_long_one() {
        let (session, t0) = (Session::default(), Instant::now());
        let check = |n_bytes| session.check_free_for(t0, &"x".repeat(n_bytes));
        assert!(check(1).is_ok() && check(MAX_NAME_BYTES).is_ok());
        assert_eq!([0, MAX_NAME_BYTES + 1].map(|n| kind(check(n))), [FailureKind::BadMessage; 2]);
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
        assert!(session.advance("a", 1, Phase::Loading));
        assert_eq!(kind(session.prepare(t0, "a", 1)), FailureKind::StaleEpoch);
    }

    #[test]
    fn a_failed_epoch_repeats_its_first_reason() {
        let (mut session, t0) = (Session::default(), Instant::now());
        session.prepare(t0, "a", 1).unwrap();
        session.fail("a", 1, Failure::new(FailureKind::Compute, 2, "first"));
        session.fail("a", 1, Failure::new(FailureKind::PeerLost, 0, "second"));
        assert!(!session.advance("a", 1, Phase::Ready));
        let failure = session.check_phase(t0, "a", 1, Phase::Ready).unwrap_err();
        assert_eq!((failure.kind(), failure.reason.as_str()), (FailureKind::Compute, "first"));
    }

    #[test]
    fn a_past_epochs_end_does_not_touch_the_present() {
        let (mut session, t0) = (Session::default(), Instant::now());
        session.prepare(t0, "a", 1).unwrap();
        session.prepare(t0, "a", 2).unwrap();
        session.fail("a", 1, Failure::new(FailureKind::PeerLost, 0, "late"));
        assert_eq!(session.phase(), Phase::Prepared);
    }

    #[test]
    fn a_coordinator_starts_anew_whatever_another_has_counted_to() {
        let (mut session, t0) = (Session::default(), Instant::now());
        session.prepare(t0, "rogue", MAX_EPOCH_STEP).unwrap();
        session.release();
        assert_eq!(session.prepare(t0, "a", 1), Ok(Taken::NewEpoch));
        assert_eq!((session.last_epoch("a"), session.last_epoch("b")), (1, 0));
        // The state of the other coordinator does not end this epoch, though its number is the same.
        session.release();
        session.prepare(t0, "b", 1).unwrap();
        session.fail("a", 1, Failure::new(FailureKind::PeerLost, 0, "late"));
        assert!(!session.advance("a", 1, Phase::Loading));
        assert_eq!(session.phase(), Phase::Prepared);
        assert!(!session.is_at("a", 1) && session.is_at("b", 1));
    }

    #[test]
    fn no_epoch_is_the_last() {
        let (mut session, t0) = (Session::default(), Instant::now());
        for absurd in [u64::MAX, u64::MAX - 1, MAX_EPOCH_STEP + 1] {
            assert_eq!(kind(session.prepare(t0, "a", absurd)), FailureKind::BadMessage);
        }
        assert_eq!((session.phase(), session.owner()), (Phase::Idle, None));
        session.prepare(t0, "a", 7).unwrap();
        assert_eq!(kind(session.prepare(t0, "a", u64::MAX)), FailureKind::BadMessage);
        assert_eq!(session.prepare(t0, "a", 7 + MAX_EPOCH_STEP), Ok(Taken::NewEpoch));
    }

    #[test]
    fn only_its_holder_takes_a_worker_out_of_a_line_though_it_drains() {
        let (mut session, t0) = (Session::default(), Instant::now());
        assert_eq!(kind(session.retire(t0, "a", 1)), FailureKind::Busy);
        session.prepare(t0, "a", 1).unwrap();
        session.drain();
        assert_eq!(kind(session.retire(t0 + LEASE, "b", 2)), FailureKind::Busy);
        assert_eq!(kind(session.retire(t0, "a", 1)), FailureKind::StaleEpoch);
        session.retire(t0, "a", 2).unwrap();
        assert!(session.is_at("a", 2) && session.phase() == Phase::Closed);
        assert_eq!(kind(session.check(t0, "a", 1)), FailureKind::StaleEpoch);
    }

    #[test]
    fn few_coordinators_are_remembered() {
        let (mut session, t0) = (Session::default(), Instant::now());
        for i in 0..10 * MAX_PAST_OWNERS {
            session.prepare(t0, &format!("c{i}"), 1).unwrap();
            session.release();
        }
        assert!(session.past.len() <= MAX_PAST_OWNERS + 1);
        let latest = format!("c{}", 10 * MAX_PAST_OWNERS - 1);
        assert_eq!(kind(session.prepare(t0, &latest, 1)), FailureKind::StaleEpoch);
    }

    #[test]
    fn others_are_told_the_beginning_of_an_id() {
        let (mut session, t0) = (Session::default(), Instant::now());
        session.prepare(t0, "0123456789abcdef", 1).unwrap();
        let busy = session.prepare(t0, "b", 1).unwrap_err();
        assert!(busy.reason.contains("01234567 holds") && !busy.reason.contains("89ab"), "{busy}");
        let busy = session.check(t0, "b", 1).unwrap_err();
        assert!(busy.reason.contains("01234567") && !busy.reason.contains("89ab"), "{busy}");
    }

    #[test]
    fn of_a_certificate_others_are_told_the_name_and_not_the_rest() {
        let key = "ab".repeat(32);
        let (mut session, t0) = (Session::default(), Instant::now());
        session.prepare(t0, &format!("desk:{key}:secret"), 1).unwrap();
        let busy = session.prepare(t0, "b", 1).unwrap_err();
        assert!(busy.reason.contains("desk (key abababab)"), "{busy}");
        assert!(!busy.reason.contains("secret"), "{busy}");
    }

    #[test]
    fn a_draining_worker_takes_nothing_new() {
        let mut session = Session::default();
        session.drain();
        assert_eq!(kind(session.prepare(Instant::now(), "a", 1)), FailureKind::Draining);
    }
}
