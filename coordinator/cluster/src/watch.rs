//! Finds the workers that broke a line.
//!
//! The driver sees only that a stream ended or that a ubatch did not come back. Here the processes and the heartbeats
//! are checked, and the failing stage's own report is read.
//!
//! A stage that computes for long does not yet hang. How long a ubatch may take is measured, grows with its
//! rows, and comes with the driver's report. Before anything was measured, no stage is called stuck.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use brigade_proto::control::HealthReply;
use tokio::task::JoinSet;

use crate::members::member::Member;
use crate::reconcile::MemberId;
use brigade_line::stages::link::Fault;

/// How soon after its streams a child's process is seen to have ended.
const CHILD_ENDS_WITHIN: Duration = Duration::from_millis(200);

/// A member that is to blame for a broken line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The member to blame.
    pub member: MemberId,
    /// The fault, in words, for every client of the line.
    pub how: String,
    /// Whether it is gone or stuck, and no call to it is of use; else it failed and may do better.
    pub is_gone: bool,
}

/// Members of `line` (first stage first) that are to blame for a fault; none where all look well.
/// A child that has ended shows at once, a silent worker within a heartbeat.
pub async fn find_culprits(
    members: &mut BTreeMap<MemberId, Member>,
    line: &[MemberId],
    fault: &Fault,
) -> Vec<Culprit> {
    let ended = tokio::time::timeout(CHILD_ENDS_WITHIN, child_ended(members));
    if let Ok((member, how)) = ended.await
        && line.contains(&member)
    {
        return vec![Culprit { member, how, is_gone: true }];
    }
    let stage = fault.stage.and_then(|stage| line.get(stage as usize));
    if let Some(&member) = stage {
        return vec![Culprit { member, how: fault.reason.clone(), is_gone: false }];
    }
    silent(members, line, fault.stuck_after_us).await
}

/// Members of `line` that do not answer now, or have computed one ubatch for longer than any may take.
pub async fn silent(
    members: &BTreeMap<MemberId, Member>,
    line: &[MemberId],
    stuck_after_us: Option<u64>,
) -> Vec<Culprit> {
    let mut looks = JoinSet::new();
    for id in line {
        if let Some(conn) = members.get(id).and_then(Member::conn).cloned() {
            let id = *id;
            looks.spawn(async move { (id, conn.health(0).await) });
        }
    }
    let mut silent = Vec::new();
    while let Some(look) = looks.join_next().await {
        // A look ends without a result only when the process is ending.
        let Ok((member, health)) = look else { continue };
        let how = match health {
            Err(reason) => Some(reason),
            Ok(health) => stuck(&health, stuck_after_us),
        };
        silent.extend(how.map(|how| Culprit { member, how, is_gone: true }));
    }
    silent.sort_by_key(|culprit| culprit.member);
    silent
}

/// The fault, in words, if a stage has computed one ubatch for longer than any may take.
fn stuck(health: &HealthReply, stuck_after_us: Option<u64>) -> Option<String> {
    let after = stuck_after_us?;
    let ms = health.computing_us / 1000;
    let why = format!(
        "it has been computing one ubatch for {ms} ms, {} ms at most are expected",
        after / 1000
    );
    (health.computing_us > after).then_some(why)
}

/// The first child that ends by itself, and how.
pub async fn child_ended(members: &mut BTreeMap<MemberId, Member>) -> (MemberId, String) {
    poll_fn(|cx| {
        for (id, member) in members.iter_mut() {
            if let Some(child) = member.child_mut()
                && let Poll::Ready(how) = pin!(child.ended()).poll(cx)
            {
                return Poll::Ready((*id, how));
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_stuck_only_beyond_what_was_measured() {
        let computing = |seconds: u64| HealthReply {
            computing_us: seconds * 1_000_000,
            ..HealthReply::default()
        };
        // A large prefill on a slow machine: 12 s, where 40 s are within what such ubatches take.
        assert_eq!(stuck(&computing(12), Some(40_000_000)), None);
        assert!(stuck(&computing(41), Some(40_000_000)).unwrap().contains("41000 ms"));
        // Nothing was measured, so no time is known to be too long.
        assert_eq!(stuck(&computing(300), None), None);
    }
}
