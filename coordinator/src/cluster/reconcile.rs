//! Desired state against observed state: at most one next step.
//!
//! Pure. The supervisor observes, asks [`next`], performs the step, and observes again; whatever
//! went wrong in between is just another observation.

use std::time::Duration;

/// How long a lost worker that is not ours to restart is waited for before the line is planned
/// without it.
pub const WAIT_FOR_LOST: Duration = Duration::from_secs(20);

/// Number of a member in the supervisor's list.
pub type MemberId = usize;

/// What is known of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberSeen {
    /// Not connected; the next attempt is due in this long.
    Absent {
        /// Zero: now.
        retry_in: Duration,
        /// Since it was lost or first wanted.
        absent_for: Duration,
        /// Whether a line may be built without it after [`WAIT_FOR_LOST`].
        optional: bool,
    },
    /// Handshake done, capabilities known and sufficient.
    Connected,
}

/// What is known of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineSeen {
    /// Nothing is placed.
    Down,
    /// Layers are placed and their bytes are where they are needed.
    Placed,
    /// All stages have loaded.
    Loaded,
    /// Ubatches flow.
    Up,
    /// It was placed, loaded or up, and something in it failed.
    Broken {
        /// What.
        reason: String,
    },
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Tell the driver, close lanes, free what can be freed.
    TakeDown {
        /// For everybody who was on the line.
        reason: String,
    },
    /// Start or dial these members.
    Connect(Vec<MemberId>),
    /// Nothing can be done before something happens or this long has passed.
    Wait(Duration),
    /// Cut the layers over the connected members and bring them their bytes.
    Place,
    /// Load all stages.
    Load,
    /// Open the lane.
    Open,
    /// All is well: wait for news.
    Watch,
}

/// Longest wait before looking again though nothing happened.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The next step towards a line over at least `wanted` members.
pub fn next(wanted: usize, members: &[MemberSeen], line: &LineSeen) -> Step {
    if let LineSeen::Broken { reason } = line {
        return Step::TakeDown { reason: reason.clone() };
    }
    match line {
        LineSeen::Placed => return Step::Load,
        LineSeen::Loaded => return Step::Open,
        LineSeen::Up => return Step::Watch,
        LineSeen::Down | LineSeen::Broken { .. } => {}
    }
    let due: Vec<MemberId> = members
        .iter()
        .enumerate()
        .filter(|(_, m)| matches!(m, MemberSeen::Absent { retry_in, .. } if retry_in.is_zero()))
        .map(|(id, _)| id)
        .collect();
    if !due.is_empty() {
        return Step::Connect(due);
    }
    let connected = members.iter().filter(|m| **m == MemberSeen::Connected).count();
    let waited_for = members.iter().any(|m| match m {
        MemberSeen::Connected => false,
        MemberSeen::Absent { absent_for, optional, .. } => !optional || *absent_for < WAIT_FOR_LOST,
    });
    if connected >= wanted.max(1) && !waited_for {
        return Step::Place;
    }
    Step::Wait(shortest_wait(members))
}

fn shortest_wait(members: &[MemberSeen]) -> Duration {
    members
        .iter()
        .filter_map(|m| match m {
            MemberSeen::Absent { retry_in, .. } => Some(*retry_in),
            MemberSeen::Connected => None,
        })
        .min()
        .map_or(LOOK_AGAIN, |d| d.min(LOOK_AGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(300);

    fn absent(retry_in: Duration, absent_for: Duration, optional: bool) -> MemberSeen {
        MemberSeen::Absent { retry_in, absent_for, optional }
    }

    #[test]
    fn a_start_goes_connect_place_load_open_watch() {
        let new = absent(Duration::ZERO, Duration::ZERO, false);
        assert_eq!(next(2, &[new.clone(), new], &LineSeen::Down), Step::Connect(vec![0, 1]));
        let both = [MemberSeen::Connected, MemberSeen::Connected];
        assert_eq!(next(2, &both, &LineSeen::Down), Step::Place);
        assert_eq!(next(2, &both, &LineSeen::Placed), Step::Load);
        assert_eq!(next(2, &both, &LineSeen::Loaded), Step::Open);
        assert_eq!(next(2, &both, &LineSeen::Up), Step::Watch);
    }

    #[test]
    fn a_broken_line_is_taken_down_before_anything_else() {
        let lost = absent(Duration::ZERO, Duration::ZERO, false);
        let line = LineSeen::Broken { reason: "stage 1".into() };
        assert_eq!(
            next(2, &[MemberSeen::Connected, lost.clone()], &line),
            Step::TakeDown { reason: "stage 1".into() }
        );
        assert_eq!(
            next(2, &[MemberSeen::Connected, lost], &LineSeen::Down),
            Step::Connect(vec![1])
        );
    }

    #[test]
    fn backoff_is_waited_out() {
        let members = [MemberSeen::Connected, absent(SOON, SOON, false)];
        assert_eq!(next(2, &members, &LineSeen::Down), Step::Wait(SOON));
    }

    #[test]
    fn an_optional_member_is_waited_for_and_then_left_out() {
        let members = [MemberSeen::Connected, absent(SOON, SOON, true)];
        assert_eq!(next(1, &members, &LineSeen::Down), Step::Wait(SOON));
        let members = [MemberSeen::Connected, absent(SOON, WAIT_FOR_LOST, true)];
        assert_eq!(next(1, &members, &LineSeen::Down), Step::Place);
        let members = [MemberSeen::Connected, absent(SOON, WAIT_FOR_LOST, false)];
        assert_eq!(next(1, &members, &LineSeen::Down), Step::Wait(SOON));
    }

    #[test]
    fn nobody_there_means_waiting_for_joins() {
        assert_eq!(next(2, &[], &LineSeen::Down), Step::Wait(LOOK_AGAIN));
        assert_eq!(next(2, &[MemberSeen::Connected], &LineSeen::Down), Step::Wait(LOOK_AGAIN));
    }
}
