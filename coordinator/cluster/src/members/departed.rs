//! The supervisor's memory of workers that joined by themselves and left again.
//!
//! It remembers refusals with their reasons, and the hosts on which workers broke lines. A worker that crashes and
//! comes back on another port looks like a new one. Its host shows that it takes the place of the old one. The number
//! of hosts and refusals is bounded.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use brigade_proto::address::Address;

use crate::members::member::DOUBT_FOR;

/// Hosts and refusals remembered, each; the oldest go first.
const MAX_REMEMBERED: usize = 256;

/// How long an address that was refused is not dialled again, however often it joins.
pub const REFUSED_FOR: Duration = Duration::from_secs(10);

/// How long the same refusal is not logged again.
const TOLD_FOR: Duration = Duration::from_secs(600);

/// A worker that was refused.
#[derive(Debug)]
struct Refusal {
    address: Address,
    reason: String,
    at: Instant,
    told: Instant,
}

/// A worker that was there and left.
#[derive(Clone, Debug)]
pub struct Left {
    /// The worker's name.
    pub name: String,
    /// The address at which it was dialled.
    pub address: String,
    /// The worker's key, in hexadecimal.
    pub key: Option<String>,
    /// When it was lost.
    pub at: Instant,
    /// Why it left, in words.
    pub why: String,
}

/// The records of workers that left.
#[derive(Debug, Default)]
pub struct Departed {
    /// Where workers broke lines and left, and when last.
    hosts: VecDeque<(String, Instant)>,
    refusals: VecDeque<Refusal>,
    left: VecDeque<Left>,
}

impl Departed {
    /// A worker that broke lines has left.
    pub fn left_doubted(&mut self, address: &Address, now: Instant) {
        let host = host_of(address);
        self.hosts.retain(|(other, _)| *other != host);
        push(&mut self.hosts, (host, now));
    }

    /// A worker that was there is forgotten.
    pub fn has_left(&mut self, left: Left) {
        // A stage of a node has another key each time it starts.
        let is_same = |other: &Left| other.key == left.key || other.name == left.name;
        self.left.retain(|other| other.address != left.address || !is_same(other));
        push(&mut self.left, left);
    }

    /// Workers that left, oldest first.
    pub fn left(&self) -> impl Iterator<Item = &Left> {
        self.left.iter()
    }

    /// Whether a newcomer takes the place of one that broke lines lately.
    pub fn doubts(&self, address: &Address, now: Instant) -> bool {
        let host = host_of(address);
        let recent = |at: Instant| now.saturating_duration_since(at) < DOUBT_FOR;
        self.hosts.iter().any(|(other, at)| *other == host && recent(*at))
    }

    /// A worker was refused; whether that is news.
    pub fn refused(&mut self, address: &Address, reason: &str, now: Instant) -> bool {
        let at = self.refusals.iter().position(|r| r.address == *address);
        let before = at.and_then(|at| self.refusals.remove(at));
        let told = before.filter(|r| r.reason == reason).map(|r| r.told);
        let told = told.filter(|told| now.saturating_duration_since(*told) < TOLD_FOR);
        let (address, reason) = (address.clone(), reason.to_string());
        push(&mut self.refusals, Refusal { address, reason, at: now, told: told.unwrap_or(now) });
        told.is_none()
    }

    /// Whether it was refused a moment ago.
    pub fn was_refused(&self, address: &Address, now: Instant) -> bool {
        let recent = |r: &Refusal| now.saturating_duration_since(r.at) < REFUSED_FOR;
        self.refusals.iter().any(|r| r.address == *address && recent(r))
    }
}

fn push<T>(queue: &mut VecDeque<T>, entry: T) {
    if queue.len() == MAX_REMEMBERED {
        queue.pop_front();
    }
    queue.push_back(entry);
}

/// Whether two addresses are of one machine, as far as their text says.
pub fn same_host(a: &Address, b: &Address) -> bool {
    host_of(a) == host_of(b)
}

/// The host of an address.
pub fn host_of(address: &Address) -> String {
    match address {
        Address::Tcp { host, .. } => host.clone(),
        // A socket in the file system is on this machine.
        Address::Unix(_) => "unix".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn a_newcomer_takes_the_place_of_one_that_left_its_host() {
        let (mut departed, now) = (Departed::default(), Instant::now());
        departed.left_doubted(&address("10.0.0.4:7070"), now);
        assert!(departed.doubts(&address("10.0.0.4:7071"), now));
        assert!(!departed.doubts(&address("10.0.0.5:7070"), now));
        assert!(!departed.doubts(&address("10.0.0.4:7071"), now + DOUBT_FOR));
    }

    #[test]
    fn a_refusal_is_told_once_and_dialled_again_later() {
        let (mut departed, now) = (Departed::default(), Instant::now());
        let who = address("10.0.0.4:7070");
        assert!(departed.refused(&who, "old version", now));
        assert!(departed.was_refused(&who, now));
        let later = now + REFUSED_FOR;
        assert!(!departed.was_refused(&who, later));
        assert!(!departed.refused(&who, "old version", later), "told already");
        assert!(departed.refused(&who, "no Q4_K", later), "another reason is news");
    }

    #[test]
    fn a_stage_that_left_with_several_keys_is_one() {
        let (mut departed, at) = (Departed::default(), Instant::now());
        for (name, key) in [("lab.1", "a"), ("lab.1", "b"), ("lab.2", "c"), ("other", "c")] {
            let (address, why) = ("10.0.0.4:7070".to_owned(), "no".to_owned());
            departed.has_left(Left { name: name.into(), address, key: Some(key.into()), at, why });
        }
        let left: Vec<&str> = departed.left().map(|left| left.name.as_str()).collect();
        assert_eq!(left, ["lab.1", "other"]);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut departed, now) = (Departed::default(), Instant::now());
        for port in 1..2000 {
            departed.refused(&address(&format!("10.0.0.4:{port}")), "no", now);
            let at = format!("10.0.0.4:{port}");
            let (name, key, why) = ("lab".into(), None, "no".into());
            departed.has_left(Left { name, address: at, key, at: now, why });
            departed.left_doubted(&address(&format!("10.1.{}.{}:1", port / 200, port % 200)), now);
        }
        assert_eq!(
            [departed.hosts.len(), departed.refusals.len(), departed.left.len()],
            [MAX_REMEMBERED; 3]
        );
    }
}
