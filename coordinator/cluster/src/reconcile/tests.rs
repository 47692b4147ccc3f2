//! Tests of the decisions about lines. They have no sockets: members are described as data, and the last tests
//! simulate some of them in virtual time.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(300);

fn there(id: MemberId) -> MemberSeen {
    MemberSeen {
        id,
        presence: Presence::Connected,
        missing_for: Duration::ZERO,
        named: true,
        known: true,
        doubts: 0,
        broke_badly: false,
        gets_ready: false,
        busy: false,
        refuses: false,
    }
}

fn missing(id: MemberId, missing_for: Duration) -> MemberSeen {
    let presence = Presence::Absent { retry_in: SOON };
    MemberSeen { presence, missing_for, ..there(id) }
}

fn connecting(id: MemberId, since: Duration) -> MemberSeen {
    MemberSeen { presence: Presence::Connecting { since }, missing_for: since, ..there(id) }
}

const WAIT_FOR_LOST: Duration = DEFAULT_REPLACE_AFTER;
const START: Goal = Goal {
    expect: 1,
    all_named: false,
    joins: false,
    was_up: false,
    last_line: 0,
    replace_after: WAIT_FOR_LOST,
    in_pairs: false,
};
const AGAIN: Goal = Goal { was_up: true, last_line: 3, ..START };
const DOWN: LineSeen = LineSeen::Down { retry_in: Duration::ZERO };

/// The decision with workers of equal memory, of which `n` suffice.
fn decide(goal: Goal, members: &[MemberSeen], n: usize) -> Step {
    next(&goal, members, DOWN, &mut |ids| {
        if ids.len() >= n { Ok(()) } else { Err(format!("{n} are needed")) }
    })
}

fn waits(step: &Step) -> Duration {
    match step {
        Step::Wait { within, lacking: Some(_) } => *within,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_start_goes_connect_build_watch() {
    let new = |id| MemberSeen {
        presence: Presence::Absent { retry_in: Duration::ZERO },
        ..missing(id, Duration::ZERO)
    };
    assert_eq!(decide(START, &[new(0), new(1)], 2), Step::Connect(vec![0, 1]));
    waits(&decide(START, &[there(0), connecting(1, SOON)], 1));
    let both = [there(0), there(1)];
    assert_eq!(decide(START, &both, 2), Step::Build(vec![0, 1]));
    for line in [LineSeen::Building, LineSeen::Up] {
        let step = next(&START, &both, line, &mut |_| Ok(()));
        assert!(matches!(step, Step::Wait { lacking: None, .. }), "{step:?}");
        // A worker that is lost in this time is dialled as well.
        let step = next(&START, &[there(0), new(1)], line, &mut |_| Ok(()));
        assert_eq!(step, Step::Connect(vec![1]));
    }
}

#[test]
fn named_workers_are_waited_for_at_the_start_and_then_left_out() {
    let members = |time| [there(0), there(1), missing(2, time)];
    assert_eq!(waits(&decide(START, &members(SECOND), 2)), SOON);
    assert_eq!(decide(START, &members(WAIT_AT_START), 2), Step::Build(vec![0, 1]));
    // The others do not suffice: it is waited for as long as it takes.
    waits(&decide(START, &members(WAIT_AT_START * 9), 3));
}

#[test]
fn children_that_get_ready_are_waited_for_at_the_start_however_long_they_take() {
    let slow = |gets_ready| MemberSeen { gets_ready, ..connecting(2, WAIT_AT_START * 3) };
    waits(&decide(START, &[there(0), there(1), slow(true)], 2));
    assert_eq!(decide(START, &[there(0), there(1), slow(false)], 2), Step::Build(vec![0, 1]));
    // A line that was there comes back without them.
    let again = Goal { last_line: 2, ..AGAIN };
    assert_eq!(decide(again, &[there(0), there(1), slow(true)], 2), Step::Build(vec![0, 1]));
}

#[test]
fn a_lost_worker_is_waited_for_and_then_left_out() {
    let members = |time| [there(0), missing(1, time), there(2)];
    waits(&decide(AGAIN, &members(SECOND), 2));
    assert_eq!(decide(AGAIN, &members(WAIT_FOR_LOST), 2), Step::Build(vec![0, 2]));
}

#[test]
fn a_spare_stands_in_at_once() {
    let lost = missing(1, SOON);
    assert_eq!(decide(AGAIN, &[there(0), lost, there(2), there(3)], 3), Step::Build(vec![0, 2, 3]));
    // Also where two would do: there are as many as before.
    assert_eq!(decide(AGAIN, &[there(0), lost, there(2), there(3)], 2), Step::Build(vec![0, 2, 3]));
}

#[test]
fn hung_addresses_are_not_waited_for() {
    // At different phases: dialled for a moment, for long, between two attempts.
    let hung = [
        MemberSeen { missing_for: WAIT_AT_START, ..connecting(3, SECOND * 4) },
        MemberSeen { missing_for: WAIT_AT_START, ..connecting(4, SETTLE) },
        missing(5, WAIT_AT_START),
        missing(6, WAIT_AT_START * 2),
    ];
    let mut members = vec![there(0), there(1), there(2)];
    members.extend(hung);
    assert_eq!(decide(START, &members, 3), Step::Build(vec![0, 1, 2]));
    // One that is about to answer gets a moment.
    members.push(MemberSeen { missing_for: WAIT_AT_START, ..connecting(7, SOON) });
    assert_eq!(waits(&decide(START, &members, 3)), SOON);
}

#[test]
fn who_broke_lines_is_used_only_where_others_do_not_suffice() {
    let doubted = |id, doubts| MemberSeen { doubts, ..there(id) };
    let members = [there(0), doubted(1, 1), there(2), doubted(3, 2), doubted(4, 1)];
    assert_eq!(decide(AGAIN, &members, 2), Step::Build(vec![0, 2]));
    assert_eq!(decide(AGAIN, &members, 3), Step::Build(vec![0, 1, 2]));
    assert_eq!(decide(AGAIN, &members, 4), Step::Build(vec![0, 1, 2, 4]));
    assert_eq!(decide(AGAIN, &members, 5), Step::Build(vec![0, 1, 2, 3, 4]));
    // Nor is it waited for.
    let lost = MemberSeen { doubts: 1, ..missing(1, Duration::ZERO) };
    assert_eq!(decide(AGAIN, &[there(0), lost, there(2)], 2), Step::Build(vec![0, 2]));
}

#[test]
fn where_all_broke_lines_nobody_stands_out() {
    let doubted = |id, doubts| MemberSeen { doubts, ..there(id) };
    let members = [doubted(0, 2), doubted(1, 4), doubted(2, 3)];
    assert_eq!(decide(AGAIN, &members, 1), Step::Build(vec![0, 1, 2]));
    let members = [doubted(0, 2), doubted(1, 5), doubted(2, 3)];
    assert_eq!(decide(AGAIN, &members, 1), Step::Build(vec![0, 2]));
}

#[test]
fn who_is_busy_is_waited_for_as_long_as_who_is_lost() {
    let busy = |time| MemberSeen { busy: true, missing_for: time, ..there(1) };
    // It passes the handshake: while there is patience it is asked again, later the others go first.
    assert_eq!(decide(AGAIN, &[there(0), busy(SECOND), there(2)], 2), Step::Build(vec![0, 1, 2]));
    assert_eq!(
        decide(AGAIN, &[there(0), busy(WAIT_FOR_LOST), there(2)], 2),
        Step::Build(vec![0, 2])
    );
    assert_eq!(
        decide(AGAIN, &[there(0), busy(WAIT_FOR_LOST), there(2)], 3),
        Step::Build(vec![0, 1, 2])
    );
}

#[test]
fn who_refuses_is_not_waited_for() {
    let refuses = MemberSeen { refuses: true, ..missing(2, SOON) };
    assert_eq!(decide(START, &[there(0), there(1), refuses], 2), Step::Build(vec![0, 1]));
    // All have answered, and it is not enough: that will not change by itself.
    let step = decide(START, &[there(0), refuses], 2);
    assert_eq!(step, Step::GiveUp("2 are needed".to_string()));
    // Where workers may join, or there was a line, it may.
    waits(&decide(Goal { joins: true, ..START }, &[there(0), refuses], 2));
    waits(&decide(AGAIN, &[there(0), refuses], 2));
}

#[test]
fn the_first_line_waits_for_as_many_as_are_expected() {
    let goal = Goal { expect: 3, joins: true, ..START };
    waits(&decide(goal, &[there(0), there(1)], 1));
    assert_eq!(decide(goal, &[there(0), there(1), there(2)], 1), Step::Build(vec![0, 1, 2]));
    // A later line does not wait: the workers that are there can form it.
    let goal = Goal { was_up: true, last_line: 3, ..goal };
    let lost = missing(2, WAIT_FOR_LOST);
    assert_eq!(decide(goal, &[there(0), there(1), lost], 1), Step::Build(vec![0, 1]));
    waits(&decide(goal, &[], 1));
}

#[test]
fn a_command_goes_without_nobody() {
    let goal = Goal { all_named: true, ..START };
    waits(&decide(goal, &[there(0), missing(1, WAIT_AT_START * 2)], 1));
    let doubted = MemberSeen { doubts: 2, ..there(1) };
    assert_eq!(decide(goal, &[there(0), doubted], 1), Step::Build(vec![0, 1]));
}

#[test]
fn who_joined_and_left_is_forgotten() {
    let left = |known, time| MemberSeen { named: false, known, ..missing(1, time) };
    assert_eq!(decide(AGAIN, &[there(0), left(false, Duration::ZERO)], 1), Step::Forget(vec![1]));
    waits(&decide(AGAIN, &[there(0), left(true, SECOND)], 1));
    assert_eq!(decide(AGAIN, &[there(0), left(true, WAIT_FOR_LOST)], 1), Step::Forget(vec![1]));
}

#[test]
fn a_line_whose_workers_keep_each_others_copies_has_two_if_a_second_is_of_use() {
    let pairs = Goal { in_pairs: true, ..AGAIN };
    let broke = |id, doubts| MemberSeen { doubts, ..there(id) };
    let members = [broke(0, 5), there(1), broke(2, 4)];
    assert_eq!(decide(AGAIN, &members, 1), Step::Build(vec![1]));
    assert_eq!(decide(pairs, &members, 1), Step::Build(vec![1, 2]));
    assert_eq!(decide(pairs, &members, 3), Step::Build(vec![0, 1, 2]));
    assert_eq!(decide(pairs, &[there(1)], 1), Step::Build(vec![1]));
    // Alone, it waits a moment for who was just lost, though that one is not trusted.
    let lost = |missing_for| [there(1), MemberSeen { doubts: 5, ..missing(2, missing_for) }];
    assert_eq!(waits(&decide(pairs, &lost(SOON), 1)), SOON);
    assert_eq!(decide(pairs, &lost(SETTLE), 1), Step::Build(vec![1]));
    assert_eq!(decide(AGAIN, &lost(SOON), 1), Step::Build(vec![1]));
    // A useless second worker does not keep the line from coming up.
    let of_no_use = [
        broke(0, DOUBTS_OF_A_SECOND + 1),
        MemberSeen { broke_badly: true, ..broke(2, 1) },
        MemberSeen { busy: true, ..broke(3, 1) },
    ];
    let members = [&[there(1)][..], &of_no_use].concat();
    assert_eq!(decide(pairs, &members, 1), Step::Build(vec![1]));
}

#[test]
fn a_pause_after_failures_is_waited_out() {
    let line = LineSeen::Down { retry_in: SOON };
    let step = next(&AGAIN, &[there(0)], line, &mut |_| Ok(()));
    assert_eq!(waits(&step), SOON);
}

/// Workers in virtual time: how long until a line is built, and over whom.
fn until_built(
    goal: Goal,
    needed: usize,
    world: impl Fn(Duration) -> Vec<MemberSeen>,
) -> (Duration, Vec<MemberId>) {
    let mut now = Duration::ZERO;
    for _ in 0..100_000 {
        match decide(goal, &world(now), needed) {
            Step::Build(who) => return (now, who),
            Step::Wait { within, .. } => {
                assert!(within > Duration::ZERO, "it would spin");
                now += within;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("no line after {now:?}");
}

#[test]
fn four_hung_addresses_keep_nothing_down() {
    // Each is dialled for 8 s, pauses, and is dialled again, all out of step.
    let hung = |id: MemberId, now: Duration| {
        let phase = (now.as_millis() as u64 + 2_500 * id as u64) % 11_000;
        let seen = match phase {
            0..8_000 => connecting(id, Duration::from_millis(phase)),
            _ => MemberSeen {
                presence: Presence::Absent { retry_in: Duration::from_millis(11_000 - phase) },
                ..there(id)
            },
        };
        MemberSeen { missing_for: now, ..seen }
    };
    let world = |now: Duration| {
        let mut members = vec![there(0), there(1), there(2)];
        members.extend((3..7).map(|id| hung(id, now)));
        members
    };
    let (at, who) = until_built(START, 3, world);
    assert!(at <= WAIT_AT_START + SETTLE * 4, "{at:?}");
    assert_eq!(who, [0, 1, 2]);
    let (at, who) = until_built(AGAIN, 3, world);
    assert!(at <= SETTLE * 4, "as many as before are there: {at:?}");
    assert_eq!(who, [0, 1, 2]);
}

#[test]
fn a_worker_that_drains_delays_the_line_once() {
    // It answers the handshake every 3 s and refuses; since when it is missing stays.
    let world = |now: Duration| {
        let between = Presence::Absent { retry_in: SECOND };
        vec![
            there(0),
            MemberSeen { presence: between, busy: true, missing_for: now, ..there(1) },
            there(2),
        ]
    };
    let (at, who) = until_built(AGAIN, 2, world);
    assert!(at <= WAIT_FOR_LOST + SECOND, "{at:?}");
    assert_eq!(who, [0, 2]);
}
