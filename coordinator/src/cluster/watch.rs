//! Who broke the line? The driver only sees a stream end; here processes and heartbeats are asked.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;

use super::conn::Conn;
use super::member::Member;
use super::reconcile::MemberId;

/// A ubatch takes well under this; where the line broke and one stage has been at it for longer,
/// that stage is stuck.
const STUCK_AFTER_US: u64 = 10_000_000;

/// How soon after its streams a child's process is seen to have ended.
const CHILD_ENDS_WITHIN: Duration = Duration::from_millis(200);

/// A reason with the name of the worker it is about.
pub fn blame(member: &Member, how: &str) -> String {
    let name = member.conn().map_or("a worker", Conn::name);
    format!("{name}: {how}")
}

/// Members that are to blame, and the reason for everybody on the line; `None` where all look well.
/// A child that has ended shows at once, a silent worker within a heartbeat.
pub async fn find_culprit(members: &mut [Member]) -> Option<(Vec<MemberId>, String)> {
    if let Ok((id, how)) = tokio::time::timeout(CHILD_ENDS_WITHIN, child_ended(members)).await {
        return Some((vec![id], blame(&members[id], &how)));
    }
    let silent = silent(members).await;
    let (id, why) = silent.first()?;
    let reason = blame(&members[*id], why);
    Some((silent.into_iter().map(|(id, _)| id).collect(), reason))
}

/// Connected members that do not answer now or are stuck in a ubatch, with the reason.
pub async fn silent(members: &[Member]) -> Vec<(MemberId, String)> {
    let mut looks = JoinSet::new();
    for (id, member) in members.iter().enumerate() {
        if let Some(conn) = member.conn().cloned() {
            looks.spawn(async move { (id, conn.health(0).await) });
        }
    }
    let mut silent = Vec::new();
    while let Some(look) = looks.join_next().await {
        match look {
            Ok((id, Err(reason))) => silent.push((id, reason)),
            Ok((id, Ok(health))) if health.computing_us > STUCK_AFTER_US => {
                let ms = health.computing_us / 1000;
                silent.push((id, format!("it has been computing one ubatch for {ms} ms")));
            }
            Ok(_) | Err(_) => {}
        }
    }
    silent
}

/// The first child that ends by itself, and how.
pub async fn child_ended(members: &mut [Member]) -> (MemberId, String) {
    poll_fn(|cx| {
        for (id, member) in members.iter_mut().enumerate() {
            if let Some(child) = member.child_mut()
                && let Poll::Ready(how) = pin!(child.ended()).poll(cx)
            {
                return Poll::Ready((id, how));
            }
        }
        Poll::Pending
    })
    .await
}
