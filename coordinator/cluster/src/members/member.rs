//! One worker that the supervisor wants: where it comes from, whether it is connected, when to try again, and
//! how far it is trusted. Times are passed in, so that tests need not wait.

use std::time::{Duration, Instant};

use brigade_plan::ByClass;
use brigade_proto::address::Address;
use brigade_proto::control::Capabilities;

use crate::config::Source;
use crate::local::LocalWorker;
use crate::members::conn::Conn;
use crate::members::facts;
use crate::reconcile::{MemberId, MemberSeen, Presence};

/// Pause after the second failure in a row; it doubles with each further one. The first is
/// retried at once.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Longest pause between attempts: dialling costs next to nothing, and a worker that is back should not
/// be left standing.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Pause for each line it broke lately, so that a crash-looping child is not started without end ...
const PAUSE_A_BREAK: Duration = Duration::from_millis(250);

/// ... but no longer than this.
const LONGEST_BREAK_PAUSE: Duration = Duration::from_secs(1);

/// Pause after a refusal that will not go away until an operator has repaired the worker.
const REFUSED_PAUSE: Duration = Duration::from_secs(15);

/// A member that was connected this long starts over with its pauses.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// How long a broken line is remembered.
pub const DOUBT_FOR: Duration = Duration::from_secs(300);

/// Weight of a line that a member broke, or of being lost while one was built.
pub const BROKE: u32 = 1;

/// Number of broken lines that are forgiven, since processes are restarted, sometimes more than once.
const FORGIVEN: u32 = 3;

/// Weight of a break that is not forgiven: a worker accepted work and did not do it, or took the place of one that
/// broke a line.
pub const BROKE_BADLY: u32 = FORGIVEN + 1;

/// Most breaks remembered of one member.
const MAX_BREAKS: usize = 64;

/// Where a worker comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Our child, with its number.
    Local(usize),
    /// Named by the user.
    Remote(Address),
    /// The worker joined by itself from this address.
    Joined(Address),
}

impl Origin {
    /// The workers that a source names, in the line's order.
    pub fn named(source: &Source) -> Vec<Self> {
        match source {
            Source::Local(options) => (0..options.count).map(Self::Local).collect(),
            Source::Remote(addresses) => addresses.iter().cloned().map(Self::Remote).collect(),
            Source::JoinOnly => Vec::new(),
        }
    }

    /// Address at which the worker is dialled; empty for a child that was not started yet.
    pub fn address(&self) -> String {
        match self {
            Self::Local(_) => String::new(),
            Self::Remote(address) | Self::Joined(address) => address.to_string(),
        }
    }

    /// The worker's name in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Local(index) => format!("local worker {index}"),
            Self::Remote(address) | Self::Joined(address) => format!("worker {address}"),
        }
    }
}

/// The state of the connection.
#[derive(Debug)]
enum State {
    Absent { retry_at: Instant },
    Connecting { since: Instant },
    Connected { conn: Box<Conn>, since: Instant },
}

/// Facts about a worker from its last connection.
#[derive(Clone, Debug)]
pub struct Known {
    /// The worker's name.
    pub name: String,
    /// Address at which the worker is dialled.
    pub address: String,
    /// The worker's key, in hexadecimal.
    pub key: Option<String>,
    /// The kernel table and the number of threads.
    pub device: String,
    /// Bytes that it may use.
    pub memory_limit: u64,
    /// 10^9 bytes a second.
    pub gb_per_second: f64,
    /// 10^9 operations a second.
    pub gop_per_second: f64,
    /// The same by the class of weights, where classes differ.
    pub products: Option<ByClass<f64>>,
}

impl Known {
    /// The facts that the worker reports.
    pub fn of(conn: &Conn) -> Self {
        let Capabilities { kernels, threads, memory_limit, gb_per_second, gop_per_second, .. } =
            conn.capabilities();
        let products = facts::products(conn.capabilities());
        Self {
            name: conn.name().to_string(),
            address: conn.address().to_string(),
            key: conn.reach().key().map(|key| key.to_string()),
            device: format!("{kernels}, {threads} threads"),
            memory_limit: *memory_limit,
            gb_per_second: *gb_per_second,
            gop_per_second: *gop_per_second,
            products: Some(products).filter(|products| products.common().is_none()),
        }
    }
}

/// A worker that the supervisor wants.
#[derive(Debug)]
pub struct Member {
    /// Source of the member.
    pub origin: Origin,
    child: Option<LocalWorker>,
    state: State,
    /// Number of its connection: another one may be of a process with other memory.
    serial: u64,
    /// Since when the member is missing from the line; `None` while it serves.
    missing_since: Option<Instant>,
    /// Facts from its last connection; `None`: it was never connected.
    known: Option<Known>,
    /// When its connection was lost; `None` while it is connected.
    lost_at: Option<Instant>,
    /// Lines it broke, with their weights, oldest first.
    breaks: Vec<(Instant, u32)>,
    busy: bool,
    refuses: bool,
    /// An operator took its layers, or it wants to leave.
    drained: bool,
    /// Why it is not there, for people.
    why: Option<String>,
    /// Attempts and refusals in a row since it was last of use.
    failures: u32,
}

impl Member {
    /// A member to be connected at once.
    pub fn new(origin: Origin, now: Instant) -> Self {
        Self {
            origin,
            child: None,
            state: State::Absent { retry_at: now },
            serial: 0,
            missing_since: Some(now),
            known: None,
            lost_at: None,
            breaks: Vec::new(),
            busy: false,
            refuses: false,
            drained: false,
            why: None,
            failures: 0,
        }
    }

    /// The member's connection, if it is connected.
    pub fn conn(&self) -> Option<&Conn> {
        match &self.state {
            State::Connected { conn, .. } => Some(conn),
            _ => None,
        }
    }

    /// The worker's name in messages.
    pub fn name(&self) -> String {
        self.known.as_ref().map_or_else(|| self.origin.name(), |known| known.name.clone())
    }

    /// Facts from its last connection; `None` before the first one.
    pub fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    /// When its connection was lost, if it is.
    pub fn lost_at(&self) -> Option<Instant> {
        self.lost_at
    }

    /// Why it is not there.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// The member's process, if it is a child that runs.
    pub fn child_mut(&mut self) -> Option<&mut LocalWorker> {
        self.child.as_mut()
    }

    /// Attempts and refusals in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Number of its present connection.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether it was ever connected.
    pub fn is_proven(&self) -> bool {
        self.known.is_some()
    }

    /// Whether it refused for a reason that does not pass by itself.
    pub fn refuses(&self) -> bool {
        self.refuses
    }

    /// Whether it gets no layers until it connects again.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// Notes an order: the member gets no layers until it connects again.
    pub fn drain(&mut self) {
        self.drained = true;
    }

    /// Notes an order: the member may get layers again.
    pub fn undrain(&mut self) {
        self.drained = false;
    }

    /// How long it has been connected, if it is.
    pub fn connected_for(&self, now: Instant) -> Option<Duration> {
        match self.state {
            State::Connected { since, .. } => Some(now.saturating_duration_since(since)),
            State::Absent { .. } | State::Connecting { .. } => None,
        }
    }

    /// Whether it came by itself.
    pub fn has_joined(&self) -> bool {
        matches!(self.origin, Origin::Joined(_))
    }

    /// The member as [`crate::reconcile`] sees it.
    pub fn seen(&self, id: MemberId, now: Instant) -> MemberSeen {
        let since = |then: Instant| now.saturating_duration_since(then);
        MemberSeen {
            id,
            presence: match &self.state {
                State::Absent { retry_at } => {
                    Presence::Absent { retry_in: retry_at.saturating_duration_since(now) }
                }
                State::Connecting { since: then } => Presence::Connecting { since: since(*then) },
                State::Connected { .. } => Presence::Connected,
            },
            missing_for: self.missing_since.map_or(Duration::ZERO, since),
            named: !self.has_joined(),
            known: !self.has_joined() || self.is_proven(),
            doubts: self.doubts(now),
            broke_badly: self.recent_breaks(now).any(|weight| weight >= BROKE_BADLY),
            gets_ready: self.gets_ready(),
            busy: self.busy,
            refuses: self.refuses,
        }
    }

    /// Whether it is a child of ours in its first attempt to get ready.
    fn gets_ready(&self) -> bool {
        let is_first = !self.is_proven() && self.failures == 0;
        is_first
            && matches!(self.origin, Origin::Local(_))
            && matches!(self.state, State::Connecting { .. })
    }

    /// Weight of the lines it broke lately, less [`FORGIVEN`].
    pub fn doubts(&self, now: Instant) -> u32 {
        self.recent_breaks(now).sum::<u32>().saturating_sub(FORGIVEN)
    }

    /// Weights of the lines it broke lately.
    fn recent_breaks(&self, now: Instant) -> impl Iterator<Item = u32> {
        let recent = move |at: Instant| now.saturating_duration_since(at) < DOUBT_FOR;
        self.breaks.iter().filter(move |(at, _)| recent(*at)).map(|(_, weight)| *weight)
    }

    /// Whether it broke any line lately.
    pub fn has_broken(&self, now: Instant) -> bool {
        self.recent_breaks(now).next().is_some()
    }

    /// Forgets the lines that it broke: the operator orders that it be used.
    pub fn trust(&mut self) {
        self.breaks.clear();
    }

    /// The time until it is trusted again; `None`: it is now.
    pub fn doubted_for(&self, now: Instant) -> Option<Duration> {
        // Its oldest breaks are forgotten first.
        let mut ends: Vec<Instant> = self.breaks.iter().map(|(at, _)| *at + DOUBT_FOR).collect();
        ends.sort_unstable();
        let trusted = |at: &Instant| self.doubts(*at) == 0;
        (self.doubts(now) > 0).then(|| {
            ends.into_iter().find(trusted).map_or(DOUBT_FOR, |at| at.saturating_duration_since(now))
        })
    }

    /// Notes that it broke a line, or kept one from coming up.
    pub fn broke(&mut self, now: Instant, weight: u32) {
        self.breaks.retain(|(at, _)| now.saturating_duration_since(*at) < DOUBT_FOR);
        if self.breaks.len() == MAX_BREAKS {
            self.breaks.remove(0);
        }
        self.breaks.push((now, weight));
    }

    /// Notes that an attempt to connect begins.
    pub fn connecting(&mut self, now: Instant) {
        self.state = State::Connecting { since: now };
    }

    /// Notes a successful attempt. Only a line can show whether the worker is of use.
    pub fn connected(&mut self, now: Instant, child: Option<LocalWorker>, conn: Conn) {
        tracing::info!(
            worker = conn.name(),
            pid = child.as_ref().and_then(LocalWorker::pid),
            kernels = conn.capabilities().kernels,
            wire = conn.wire(),
            "worker connected"
        );
        self.child = child;
        self.known = Some(Known::of(&conn));
        self.lost_at = None;
        self.why = None;
        self.refuses = false;
        self.drained = false;
        self.serial += 1;
        self.state = State::Connected { conn: Box::new(conn), since: now };
    }

    /// Notes that it is part of a line that is up.
    pub fn serves(&mut self) {
        self.missing_since = None;
        self.failures = 0;
        self.busy = false;
    }

    /// The worker is gone, or an attempt failed. A child is killed, since a new one is better in any case.
    pub async fn lost(&mut self, now: Instant, why: String) {
        if let State::Connected { since, .. } = self.state
            && now.saturating_duration_since(since) >= STABLE_AFTER
        {
            self.failures = 0;
            self.missing_since = None;
        }
        if self.conn().is_some() {
            self.lost_at = Some(now);
        }
        self.missing_since.get_or_insert(now);
        self.why = Some(why);
        let after_breaks = PAUSE_A_BREAK.saturating_mul(self.doubts(now)).min(LONGEST_BREAK_PAUSE);
        self.state = State::Absent { retry_at: now + pause(self.failures).max(after_breaks) };
        self.failures = self.failures.saturating_add(1);
        if let Some(child) = self.child.take() {
            child.kill().await;
        }
    }

    /// Notes that it answers, but has no time for us now. The time since which it is missing stays.
    pub async fn is_busy(&mut self, now: Instant, why: String) {
        self.busy = true;
        self.lost(now, why).await;
    }

    /// Notes that it refuses; it is tried again later.
    pub async fn refused(&mut self, now: Instant, why: String) {
        self.lost(now, why).await;
        self.refuses = true;
        self.state = State::Absent { retry_at: now + REFUSED_PAUSE };
    }

    /// Makes the next attempt due now, since it has joined again.
    pub fn try_now(&mut self, now: Instant) {
        self.failures = 0;
        if let State::Absent { retry_at } = &mut self.state
            && !self.refuses
        {
            *retry_at = now;
        }
    }

    /// Ends a child in good order.
    pub async fn stop(mut self) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn joined(now: Instant) -> Member {
        Member::new(Origin::Joined("127.0.0.1:1".parse().unwrap()), now)
    }

    fn retry_in(member: &Member, now: Instant) -> Duration {
        match member.seen(0, now).presence {
            Presence::Absent { retry_in } => retry_in,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_has_no_address_yet_has_an_empty_one() {
        let address = || "127.0.0.1:1".parse().unwrap();
        let origins = [Origin::Remote(address()), Origin::Joined(address()), Origin::Local(0)];
        assert_eq!(origins.map(|origin| origin.address()), ["127.0.0.1:1", "127.0.0.1:1", ""]);
    }

    #[test]
    fn pauses_grow_to_a_limit() {
        assert_eq!(pause(0), Duration::ZERO);
        assert_eq!(pause(1), FIRST_PAUSE);
        assert_eq!(pause(3), FIRST_PAUSE * 4);
        assert_eq!(pause(60), LONGEST_PAUSE);
    }

    #[tokio::test]
    async fn a_lost_member_waits_longer_each_time_until_it_joins_or_serves() {
        let now = Instant::now();
        let mut member = joined(now);
        for _ in 0..3 {
            member.lost(now, "gone".into()).await;
        }
        assert_eq!(retry_in(&member, now), FIRST_PAUSE * 2);
        member.try_now(now);
        assert_eq!(retry_in(&member, now), Duration::ZERO);
        member.lost(now, "gone".into()).await;
        assert_eq!(retry_in(&member, now), Duration::ZERO, "joining forgives failures");
        member.serves();
        member.lost(now, "gone".into()).await;
        assert_eq!(retry_in(&member, now), Duration::ZERO, "serving forgives failures");
    }

    #[tokio::test]
    async fn after_ten_restarts_a_worker_is_tried_again_within_a_second() {
        let mut now = Instant::now();
        let mut member = Member::new(Origin::Local(0), now);
        for _ in 0..10 {
            member.serves();
            member.broke(now, BROKE);
            member.lost(now, "killed".into()).await;
            assert!(retry_in(&member, now) <= LONGEST_BREAK_PAUSE);
            now += 5 * SECOND;
        }
        assert!(member.doubts(now) > 0);
        now += DOUBT_FOR;
        assert_eq!(member.doubts(now), 0, "breaks are forgotten");
        member.serves();
        member.lost(now, "killed".into()).await;
        assert_eq!(retry_in(&member, now), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_refusal_does_not_begin_the_time_it_is_missing_anew() {
        let start = Instant::now();
        let mut member = Member::new(Origin::Remote("127.0.0.1:1".parse().unwrap()), start);
        member.serves();
        member.lost(start, "killed".into()).await;
        for i in 1..30 {
            // It passes the handshake and fails Prepare, again and again.
            member.is_busy(start + SECOND * i, "it drains".into()).await;
        }
        let seen = member.seen(0, start + SECOND * 30);
        assert_eq!((seen.missing_for, seen.busy), (SECOND * 30, true));
    }

    #[tokio::test]
    async fn a_child_gets_ready_until_its_first_attempt_ends() {
        let now = Instant::now();
        let mut child = Member::new(Origin::Local(0), now);
        assert!(!child.seen(0, now).gets_ready, "it was not started yet");
        child.connecting(now);
        assert!(child.seen(0, now).gets_ready);
        child.lost(now, "it ended".into()).await;
        child.connecting(now);
        assert!(!child.seen(0, now).gets_ready, "it is not trusted twice");
        let mut other = joined(now);
        other.connecting(now);
        assert!(!other.seen(0, now).gets_ready, "another's process may hang for good");
    }

    #[test]
    fn some_breaks_are_forgiven_and_a_bad_one_is_not() {
        let now = Instant::now();
        let mut member = joined(now);
        for _ in 0..FORGIVEN {
            member.broke(now, BROKE);
        }
        assert_eq!((member.doubts(now), member.has_broken(now)), (0, true));
        member.broke(now, BROKE);
        assert_eq!(member.doubts(now), 1);
        let mut newcomer = joined(now);
        newcomer.broke(now, BROKE_BADLY);
        assert_eq!(newcomer.doubts(now), 1);
        assert!(newcomer.seen(0, now).broke_badly && !member.seen(0, now).broke_badly);
    }

    #[test]
    fn doubts_end_in_time_and_by_order() {
        let start = Instant::now();
        let later = start + Duration::from_secs(60);
        let mut member = joined(start);
        assert_eq!(member.doubted_for(start), None);
        for _ in 0..=FORGIVEN {
            member.broke(start, BROKE);
        }
        member.broke(later, BROKE);
        let left = member.doubted_for(later).unwrap();
        assert_eq!(member.doubts(later + left), 0);
        assert!(member.doubts(later + left - Duration::from_millis(1)) > 0);
        member.trust();
        assert_eq!((member.doubts(later), member.doubted_for(later)), (0, None));
    }
}
