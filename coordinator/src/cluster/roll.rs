//! The roll call: who is there and who is missing, in words, for `/health` and the log.

use std::collections::BTreeMap;

use super::member::Member;
use super::reconcile::MemberId;

/// Most names in a list; the rest are counted.
const MAX_NAMES: usize = 8;

/// Most characters of a missing worker's reason.
const MAX_REASON_CHARS: usize = 160;

/// "there: ...; missing: ... (reason)"; whatever does not apply is left out.
pub fn call(members: &BTreeMap<MemberId, Member>) -> String {
    let (there, missing): (Vec<&Member>, Vec<&Member>) =
        members.values().partition(|m| m.conn().is_some());
    let mut parts = Vec::new();
    if !missing.is_empty() {
        let who = missing.into_iter().map(|m| match m.why() {
            Some(why) => format!("{} ({})", m.name(), shorten(&without_name(m, why))),
            None => m.name(),
        });
        parts.push(format!("missing: {}", list(who)));
    }
    if !there.is_empty() {
        parts.push(format!("there: {}", list(there.into_iter().map(Member::name))));
    }
    match parts.is_empty() {
        true => "no worker has joined yet".to_string(),
        false => parts.join("; "),
    }
}

/// Names of members, in the order given.
pub fn names(members: &BTreeMap<MemberId, Member>, who: &[MemberId]) -> String {
    list(who.iter().filter_map(|id| members.get(id)).map(Member::name))
}

/// At most [`MAX_NAMES`] of them.
fn list(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    let more = names.len().saturating_sub(MAX_NAMES);
    names.truncate(MAX_NAMES);
    let names = names.join(", ");
    if more == 0 { names } else { format!("{names} and {more} more") }
}

/// Errors begin with the worker's name, which stands before them already.
fn without_name(member: &Member, why: &str) -> String {
    let name = member.name();
    why.strip_prefix(&name).map_or(why, |rest| rest.trim_start_matches([':', ' '])).to_string()
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_REASON_CHARS).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::cluster::member::Origin;

    #[tokio::test]
    async fn missing_workers_are_named_with_their_reason() {
        let now = Instant::now();
        let mut members = BTreeMap::new();
        assert_eq!(call(&members), "no worker has joined yet");
        let mut lost = Member::new(Origin::Remote("127.0.0.1:7070".parse().unwrap()), now);
        lost.lost(now, "worker 127.0.0.1:7070: connection refused".into()).await;
        members.insert(0, lost);
        members.insert(1, Member::new(Origin::Local(1), now));
        assert_eq!(
            call(&members),
            "missing: worker 127.0.0.1:7070 (connection refused), local worker 1"
        );
        assert_eq!(names(&members, &[1, 0]), "local worker 1, worker 127.0.0.1:7070");
    }

    #[test]
    fn long_lists_are_counted() {
        let names = (0..20).map(|i| i.to_string());
        assert_eq!(list(names), "0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
    }
}
