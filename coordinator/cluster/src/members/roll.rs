//! The list of workers in words, present and missing, for `/health` and the log.

use std::collections::BTreeMap;

use brigade_line::health::Roll;
use brigade_proto::control::Capabilities;

use crate::members::member::Member;
use crate::reconcile::{Lacking, MemberId};

/// Most names in a list; the rest are counted.
const MAX_NAMES: usize = 8;

/// Most characters of a missing worker's reason.
const MAX_REASON_CHARS: usize = 160;

/// The text "there: ...; missing: ... (reason)", without empty parts.
pub fn call(members: &BTreeMap<MemberId, Member>) -> String {
    let (there, missing): (Vec<&Member>, Vec<&Member>) =
        members.values().partition(|m| m.conn().is_some());
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("missing: {}", list(missing.into_iter().map(with_reason))));
    }
    if !there.is_empty() {
        parts.push(format!("there: {}", list(there.into_iter().map(Member::name))));
    }
    if parts.is_empty() { "no worker has joined yet".to_string() } else { parts.join("; ") }
}

/// The workers that are present, and which of them are on the line of `stages`, if a line is up or being built. The
/// caller fills in the memory needed and the workers expected.
pub fn roll(members: &BTreeMap<MemberId, Member>, stages: Option<&[MemberId]>) -> Roll {
    let is_on = |id: &MemberId| stages.is_some_and(|stages| stages.contains(id));
    let mut roll = Roll::default();
    for (id, member) in members {
        let Some(conn) = member.conn() else {
            roll.missing.push(with_reason(member));
            continue;
        };
        roll.memory_bytes = roll.memory_bytes.saturating_add(memory_of(conn.capabilities()));
        match stages {
            None => roll.waiting.push(member.name()),
            Some(_) if !is_on(id) => roll.spare.push(member.name()),
            Some(_) => {}
        }
    }
    let on = stages.into_iter().flatten().filter_map(|id| members.get(id));
    roll.line = on.filter(|m| m.conn().is_some()).map(Member::name).collect();
    roll
}

/// Bytes that a worker may use: of a GPU, and of the host beside it for experts.
fn memory_of(caps: &Capabilities) -> u64 {
    let host = caps.host.as_ref().filter(|host| !host.is_shared);
    caps.memory_limit.saturating_add(host.map_or(0, |host| host.memory_limit))
}

/// The number of workers that are there of those expected, and their memory beside the amount needed: `1 of 3 workers
/// joined, 12.00 GiB there, 40.00 GiB needed`. Workers that the user names "are there"; others have "joined".
pub fn headline(lacking: &Lacking, roll: &Roll, joins: bool) -> String {
    let come = match (joins, lacking) {
        (true, _) => "joined",
        (false, Lacking::Memory { there: 1, .. }) => "is there",
        (false, _) => "are there",
    };
    let memory = roll.memory();
    match lacking {
        Lacking::Workers { there, wanted } => {
            format!("{there} of {wanted} workers {come}, {memory}")
        }
        Lacking::Memory { there: 1, why } => format!("1 worker {come}, {memory}: {why}"),
        Lacking::Memory { there, why } => format!("{there} workers {come}, {memory}: {why}"),
        Lacking::Patience(what) => (*what).to_string(),
    }
}

fn with_reason(member: &Member) -> String {
    match member.why() {
        Some(why) => format!("{} ({})", member.name(), shorten(&without_name(member, why))),
        None => member.name(),
    }
}

/// Names of members, in the order given.
pub fn names(members: &BTreeMap<MemberId, Member>, who: &[MemberId]) -> String {
    list(who.iter().filter_map(|id| members.get(id)).map(Member::name))
}

/// Writes at most [`MAX_NAMES`] of some names.
pub fn list(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    let more = names.len().saturating_sub(MAX_NAMES);
    names.truncate(MAX_NAMES);
    let names = names.join(", ");
    if more == 0 { names } else { format!("{names} and {more} more") }
}

/// Errors begin with the worker's name, which stands before them already.
pub fn without_name(member: &Member, why: &str) -> String {
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

    use brigade_proto::control::HostPart;

    use super::*;
    use crate::members::member::Origin;

    #[test]
    fn a_host_beside_a_gpu_is_memory_too_unless_both_are_one() {
        let caps = |is_shared| Capabilities {
            memory_limit: 24 << 30,
            host: Some(HostPart { memory_limit: 96 << 30, is_shared, ..HostPart::default() }),
            ..Capabilities::default()
        };
        assert_eq!(memory_of(&caps(false)), 120 << 30);
        assert_eq!(memory_of(&caps(true)), 24 << 30);
        assert_eq!(memory_of(&Capabilities { host: None, ..caps(false) }), 24 << 30);
    }

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
    fn the_headline_counts_workers_and_memory() {
        let (memory_bytes, memory_needed_bytes) = (12 << 30, 40 << 30);
        let roll = Roll { memory_bytes, memory_needed_bytes, ..Roll::default() };
        let few = Lacking::Workers { there: 1, wanted: 3 };
        let says = "1 of 3 workers joined, 12.00 GiB there, 40.00 GiB needed";
        assert_eq!(headline(&few, &roll, true), says);
        let small = Lacking::Memory { there: 1, why: "m does not fit".to_string() };
        let says = "1 worker joined, 12.00 GiB there, 40.00 GiB needed: m does not fit";
        assert_eq!(headline(&small, &roll, true), says);
        assert!(headline(&small, &roll, false).starts_with("1 worker is there, "));
    }

    #[test]
    fn long_lists_are_counted() {
        let names = (0..20).map(|i| i.to_string());
        assert_eq!(list(names), "0, 1, 2, 3, 4, 5, 6, 7 and 12 more");
    }
}
