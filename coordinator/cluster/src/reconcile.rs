//! Decides the next step towards a line, from the goal and the observed state.
//!
//! This is a pure function without a clock: durations are passed in. The supervisor observes, asks [`next`], performs
//! the step, hears news, and observes again. A failure in between is just another observation.
//!
//! The promise: **a line that can be up is up**. As soon as the members that are connected and trusted have the
//! memory, the line is built over them. Before that it waits a named time for others that are worth it, and for child
//! processes as long as they take to start. A member that lately broke lines, refuses, hangs or is full is used only
//! where the others do not suffice, and is never waited for.

use std::time::Duration;

/// How long a line waits for a worker that was lost before it is rebuilt without it, unless the operator says
/// otherwise. It is not rebuilt if the others lack the memory, and does not wait if a spare takes the worker's place.
pub const DEFAULT_REPLACE_AFTER: Duration = Duration::from_secs(10);

/// How long a worker must compute slower than planned, unless the operator says otherwise.
pub const DEFAULT_SLOW_AFTER: Duration = Duration::from_secs(120);

/// How long the first line waits for named workers before it is built without them. Child processes are waited for
/// until they are ready or end, since a driver may have to compile its kernels.
pub const WAIT_AT_START: Duration = Duration::from_secs(15);

/// How long a worker that is just being dialled is waited for: it may be about to answer.
pub const SETTLE: Duration = Duration::from_secs(1);

/// How many doubts a worker may have to be the second of a line whose workers keep copies for each other. One that breaks
/// every line that it is in has more after a few.
const DOUBTS_OF_A_SECOND: u32 = 12;

/// Number of a member; never used twice by a supervisor. Lower ones come first in the line.
pub type MemberId = usize;

/// State of a member, as far as the decision needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The member is not connected; the next attempt is due in this long.
    Absent {
        /// Zero: the attempt is due.
        retry_in: Duration,
    },
    /// Being started or dialled, for so long.
    Connecting {
        /// The time since the attempt began.
        since: Duration,
    },
    /// Handshake done, capabilities known and sufficient.
    Connected,
}

/// A worker as the supervisor observes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberSeen {
    /// The member's number.
    pub id: MemberId,
    /// The state of the connection.
    pub presence: Presence,
    /// The time since it was last of use, or first wanted. A refusal does not restart it.
    pub missing_for: Duration,
    /// Named by the user or a child of ours: never forgotten.
    pub named: bool,
    /// Named, or was connected before: worth waiting for.
    pub known: bool,
    /// How often it broke lines lately; 0: trusted.
    pub doubts: u32,
    /// Whether it broke a line in an unforgivable way: it accepted work and did not do it.
    pub broke_badly: bool,
    /// A child of ours that gets ready for the first time: within a bounded time it is ready, or has ended.
    pub gets_ready: bool,
    /// Whether it answered that it has no time for us (another coordinator has it, or it drains).
    pub busy: bool,
    /// Whether it refused for a permanent reason.
    pub refuses: bool,
}

/// The line as the supervisor observes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineSeen {
    /// Nothing runs; the next line may be built in this long.
    Down {
        /// Zero: it may be built at once.
        retry_in: Duration,
    },
    /// Layers are being placed, loaded and connected.
    Building,
    /// The line is open and takes ubatches.
    Up,
}

/// The goal of the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// Workers to wait for before the first line.
    pub expect: usize,
    /// All named workers must be there: for a command that measures or prints while its user waits, or for a line
    /// that is cut by hand.
    pub all_named: bool,
    /// Whether workers may join.
    pub joins: bool,
    /// Whether there was ever a line.
    pub was_up: bool,
    /// Workers in the last line that was up.
    pub last_line: usize,
    /// How long a worker that was lost is waited for ([`DEFAULT_REPLACE_AFTER`]).
    pub replace_after: Duration,
    /// Workers of a line keep copies for each other: one alone would have none.
    pub in_pairs: bool,
}

/// Why there is no line yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// Fewer workers are connected than the line waits for.
    Workers {
        /// Workers that are connected.
        there: usize,
        /// Workers that the line waits for.
        wanted: usize,
    },
    /// The model does not fit on the connected workers.
    Memory {
        /// Workers that are connected.
        there: usize,
        /// The lack, and a remedy.
        why: String,
    },
    /// Nothing: others are waited for, or the next attempt is due.
    Patience(&'static str),
}

impl std::fmt::Display for Lacking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Workers { there, wanted } => write!(f, "{there} of {wanted} workers are there"),
            Self::Memory { why, .. } => f.write_str(why),
            Self::Patience(what) => f.write_str(what),
        }
    }
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Members left and are not ours to bring back.
    Forget(Vec<MemberId>),
    /// Start or dial these members, in the background.
    Connect(Vec<MemberId>),
    /// Build a line over these members, in the background.
    Build(Vec<MemberId>),
    /// Nothing can be done before something happens or this long has passed.
    Wait {
        /// The longest time to wait.
        within: Duration,
        /// Why there is no line yet, for people; `None` where there is one or it is being built.
        lacking: Option<Lacking>,
    },
    /// Nothing that may still happen would bring a line up.
    GiveUp(String),
}

/// Longest wait before looking again though nothing happened.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The next step towards a line. `enough` says whether the model fits on these members, or why not.
pub fn next(
    goal: &Goal,
    members: &[MemberSeen],
    line: LineSeen,
    enough: &mut dyn FnMut(&[MemberId]) -> Result<(), String>,
) -> Step {
    let ids = |which: &dyn Fn(&MemberSeen) -> bool| -> Vec<MemberId> {
        members.iter().filter(|m| which(m)).map(|m| m.id).collect()
    };
    let left =
        ids(&|m| is_absent(m) && !m.named && (!m.known || m.missing_for >= goal.replace_after));
    if !left.is_empty() {
        return Step::Forget(left);
    }
    let due = ids(&|m| m.presence == Presence::Absent { retry_in: Duration::ZERO });
    if !due.is_empty() {
        return Step::Connect(due);
    }
    let retries = members.iter().filter_map(|m| match m.presence {
        Presence::Absent { retry_in } => Some(retry_in),
        _ => None,
    });
    let look_again = retries.min().unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
    let wait = |within: Duration, lacking| Step::Wait { within: within.min(look_again), lacking };
    match line {
        LineSeen::Building | LineSeen::Up => wait(LOOK_AGAIN, None),
        LineSeen::Down { retry_in } if !retry_in.is_zero() => {
            wait(retry_in, Some(Lacking::Patience("trying again in a moment")))
        }
        LineSeen::Down { .. } => match choose(goal, members, enough) {
            Choice::Build(who) => Step::Build(who),
            Choice::Wait(within, lacking) => wait(within, Some(lacking)),
            Choice::Hopeless(why) => Step::GiveUp(why),
        },
    }
}

fn is_absent(member: &MemberSeen) -> bool {
    matches!(member.presence, Presence::Absent { .. })
}

enum Choice {
    Build(Vec<MemberId>),
    Wait(Duration, Lacking),
    Hopeless(String),
}

/// The members to build a line over now, or the reason to wait.
fn choose(
    goal: &Goal,
    members: &[MemberSeen],
    enough: &mut dyn FnMut(&[MemberId]) -> Result<(), String>,
) -> Choice {
    let connected: Vec<&MemberSeen> =
        members.iter().filter(|m| m.presence == Presence::Connected).collect();
    let wanted = if goal.was_up { 1 } else { goal.expect.max(1) };
    if connected.len() < wanted {
        let named = members.iter().filter(|m| m.named).count();
        let wanted = if goal.was_up { wanted } else { wanted.max(named) };
        return lacking(goal, members, Lacking::Workers { there: connected.len(), wanted });
    }
    let who = match trusted_first(goal, &connected, enough) {
        Ok(who) => who,
        Err(why) => {
            let there = connected.len();
            return lacking(goal, members, Lacking::Memory { there, why });
        }
    };
    let waits = members.iter().filter_map(|m| worth_waiting(goal, m, who.len()));
    match waits.min() {
        Some(time) => Choice::Wait(
            time,
            Lacking::Patience("enough workers are there; waiting a little for the others"),
        ),
        None => Choice::Build(who),
    }
}

/// All trusted members, and as few as will do of the others, those that broke fewest lines first. Where workers keep
/// copies for each other, a second worker is taken as well if there is a useful one. A line that breaks once more and
/// goes on from copies costs less than one that loses all states with its only worker.
fn trusted_first(
    goal: &Goal,
    connected: &[&MemberSeen],
    enough: &mut dyn FnMut(&[MemberId]) -> Result<(), String>,
) -> Result<Vec<MemberId>, String> {
    // Where all members broke lines, only those stand out that did so much more often than the best one.
    let usual = connected.iter().map(|m| m.doubts).min().unwrap_or(0);
    let stands_out = |m: &MemberSeen| m.doubts > 2 * usual || is_late(goal, m);
    let doubted = |m: &MemberSeen| !goal.all_named && stands_out(m);
    let mut who: Vec<MemberId> = Vec::new();
    who.extend(connected.iter().filter(|m| !doubted(m)).map(|m| m.id));
    let mut others: Vec<&MemberSeen> = connected.iter().copied().filter(|m| doubted(m)).collect();
    others.sort_by_key(|m| (m.doubts, m.id));
    let mut others = others.into_iter();
    loop {
        let why = if who.is_empty() {
            "no worker is there".to_string()
        } else {
            match enough(&who) {
                Ok(()) => break,
                Err(why) => why,
            }
        };
        let next = others.next().ok_or(why)?;
        who.push(next.id);
    }
    if goal.in_pairs && who.len() == 1 {
        who.extend(others.find(|m| is_a_second(m)).map(|m| m.id));
    }
    who.sort_unstable();
    Ok(who)
}

/// Whether a worker that broke lines is good enough to keep another's copies.
fn is_a_second(member: &MemberSeen) -> bool {
    !member.broke_badly && !member.busy && member.doubts <= DOUBTS_OF_A_SECOND
}

/// Whether it was busy for longer than a line waits for a worker.
fn is_late(goal: &Goal, member: &MemberSeen) -> bool {
    member.busy && member.missing_for >= patience(goal)
}

fn patience(goal: &Goal) -> Duration {
    if goal.was_up { goal.replace_after } else { WAIT_AT_START }
}

/// How much longer a line over `n` others waits for this member; `None`: not at all.
fn worth_waiting(goal: &Goal, member: &MemberSeen, n: usize) -> Option<Duration> {
    let is_asked_for = goal.all_named && member.named && member.presence != Presence::Connected;
    // A line without it would have to be broken for it a moment later.
    let comes_soon = !goal.was_up && member.gets_ready;
    if is_asked_for || comes_soon {
        return Some(LOOK_AGAIN);
    }
    let settling = match member.presence {
        Presence::Connected => return None,
        Presence::Connecting { since } => SETTLE.checked_sub(since).filter(|d| !d.is_zero()),
        Presence::Absent { .. } => None,
    };
    // A single worker would have no copies, and a worker that was just lost may be back at once.
    let second = (goal.in_pairs && n < 2 && goal.was_up && member.known && !member.refuses)
        .then(|| SETTLE.checked_sub(member.missing_for).filter(|d| !d.is_zero()))
        .flatten();
    let stands_in = goal.was_up && n >= goal.last_line;
    let waited_for = member.known && !stands_in && !member.refuses && member.doubts == 0;
    let left = patience(goal).checked_sub(member.missing_for).filter(|d| !d.is_zero());
    settling.max(second).max(left.filter(|_| waited_for))
}

/// The choice where the connected members do not suffice.
fn lacking(goal: &Goal, members: &[MemberSeen], why: Lacking) -> Choice {
    let is_settled = |m: &MemberSeen| m.presence == Presence::Connected || m.refuses;
    let hopeless = !goal.joins && !goal.was_up && members.iter().all(is_settled);
    if hopeless { Choice::Hopeless(why.to_string()) } else { Choice::Wait(LOOK_AGAIN, why) }
}

#[cfg(test)]
#[path = "reconcile/tests.rs"]
mod tests;
