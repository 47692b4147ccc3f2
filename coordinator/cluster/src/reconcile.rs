//! Decides the next step towards a line, from what is wanted and what is there.
//!
//! This is a pure function without a clock: durations are passed in. The supervisor observes, asks [`next`],
//! performs the step, hears news, and observes again. Whatever went wrong in between is just another
//! observation.
//!
//! The promise: **a line that can be up is up**. As soon as the members that are connected and trusted have
//! the memory, the line is built over them. Others that are worth waiting for are waited for first, for a
//! named time, and children of ours that get ready for as long as that takes them. A member that lately broke lines, refuses, hangs or is full is used only where the others do
//! not suffice, and is never waited for.

use std::time::Duration;

/// How long a worker that was lost from a running line is waited for before the others go on without it,
/// if they have the memory and nobody stands in for it: where the operator does not say.
pub const DEFAULT_REPLACE_AFTER: Duration = Duration::from_secs(10);

/// How long a worker must compute slower than planned, unless the operator says otherwise.
pub const DEFAULT_SLOW_AFTER: Duration = Duration::from_secs(120);

/// How long named workers are waited for before the first line is built without them. Children of ours that get ready, be it
/// because a driver compiles its kernels, are waited for until they are ready or end.
pub const WAIT_AT_START: Duration = Duration::from_secs(15);

/// How long a worker that is just being dialled is waited for: it may be about to answer.
pub const SETTLE: Duration = Duration::from_secs(1);

/// How many doubts a worker may have to be the second of a line whose workers keep copies for each other. One that breaks
/// every line that it is in has more after a few.
const DOUBTS_OF_A_SECOND: u32 = 12;

/// Number of a member; never used twice by a supervisor. Lower ones come first in the line.
pub type MemberId = usize;

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Not connected; the next attempt is due in this long.
    Absent {
        /// Zero: now.
        retry_in: Duration,
    },
    /// Being started or dialled, for so long.
    Connecting {
        /// Since the attempt began.
        since: Duration,
    },
    /// Handshake done, capabilities known and sufficient.
    Connected,
}

/// What is known of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberSeen {
    /// Which.
    pub id: MemberId,
    /// Where it stands.
    pub presence: Presence,
    /// Since it was last of use, or first wanted; a refusal does not begin this anew.
    pub missing_for: Duration,
    /// Named by the user or a child of ours: never forgotten.
    pub named: bool,
    /// Named, or was connected before: worth waiting for.
    pub known: bool,
    /// How often it broke lines lately; 0: trusted.
    pub doubts: u32,
    /// Among these breaks were such as are not forgiven: it accepted work and did not do it.
    pub broke_badly: bool,
    /// A child of ours that gets ready for the first time: within a bounded time it is ready, or has ended.
    pub gets_ready: bool,
    /// It answered that it has no time for us (another coordinator has it, it drains).
    pub busy: bool,
    /// It refused for a reason that does not pass by itself.
    pub refuses: bool,
}

/// What is known of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineSeen {
    /// Nothing runs; the next line may be built in this long.
    Down {
        /// Zero: now.
        retry_in: Duration,
    },
    /// Layers are being placed, loaded and connected.
    Building,
    /// Ubatches flow.
    Up,
}

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// Workers to wait for before the first line.
    pub expect: usize,
    /// Nobody who is named may be missing: a command that measures or prints, with somebody waiting, or a
    /// line that is cut by hand.
    pub all_named: bool,
    /// Workers may join.
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
    /// So many workers are there of those that the line waits for.
    Workers {
        /// Connected.
        there: usize,
        /// Wanted.
        wanted: usize,
    },
    /// So many workers are there, and the model does not fit on them.
    Memory {
        /// Connected.
        there: usize,
        /// What is lacking, and what would help.
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
    /// These left and are not ours to bring back.
    Forget(Vec<MemberId>),
    /// Start or dial these members, in the background.
    Connect(Vec<MemberId>),
    /// Build a line over these members, in the background.
    Build(Vec<MemberId>),
    /// Nothing can be done before something happens or this long has passed.
    Wait {
        /// At most.
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

/// Over whom a line is built now, or what is waited for.
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

/// All who are trusted, and as few as will do of the others, those who broke least first. Where copies are kept in pairs,
/// one is not enough if there is a second of use: a line that breaks once more and goes on from copies costs less
/// than one that loses all states with its only worker.
fn trusted_first(
    goal: &Goal,
    connected: &[&MemberSeen],
    enough: &mut dyn FnMut(&[MemberId]) -> Result<(), String>,
) -> Result<Vec<MemberId>, String> {
    // Where all broke lines, nobody stands out: whoever did so much more often than the best does.
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

/// Whether it had no time for us for longer than anybody is waited for.
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
    // One worker alone would have no copies: whoever was just lost may be back at once.
    let second = (goal.in_pairs && n < 2 && goal.was_up && member.known && !member.refuses)
        .then(|| SETTLE.checked_sub(member.missing_for).filter(|d| !d.is_zero()))
        .flatten();
    let stands_in = goal.was_up && n >= goal.last_line;
    let waited_for = member.known && !stands_in && !member.refuses && member.doubts == 0;
    let left = patience(goal).checked_sub(member.missing_for).filter(|d| !d.is_zero());
    settling.max(second).max(left.filter(|_| waited_for))
}

/// Those who are there do not suffice.
fn lacking(goal: &Goal, members: &[MemberSeen], why: Lacking) -> Choice {
    let is_settled = |m: &MemberSeen| m.presence == Presence::Connected || m.refuses;
    let hopeless = !goal.joins && !goal.was_up && members.iter().all(is_settled);
    if hopeless { Choice::Hopeless(why.to_string()) } else { Choice::Wait(LOOK_AGAIN, why) }
}

#[cfg(test)]
#[path = "reconcile/tests.rs"]
mod tests;
