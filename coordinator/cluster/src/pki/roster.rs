//! The roster: every node that has joined, with its key, the end of its certificate, and its revocation.

use std::collections::{BTreeMap, HashSet};

use brigade_proto::tls::files::Lock;
use brigade_proto::tls::party::MAX_PARTY_NAME_BYTES;
use brigade_proto::tls::verify::CLOCK_SKEW_S;
use brigade_proto::tls::{KeyId, TlsError};
use serde::{Deserialize, Serialize};

use super::folder::Folder;

pub(super) const FILE: &str = "nodes.json";
/// Nodes that a cluster remembers.
pub const MAX_NODES: usize = 4096;
/// Hexadecimal digits of a key that name a node.
const MIN_KEY_DIGITS: usize = 8;
/// Seconds after the end of its certificate for which a node may come back with its key alone.
const COMES_BACK_WITHIN_S: u64 = 90 * 86_400;

/// All nodes of a cluster.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Roster {
    nodes: Vec<Node>,
}

/// A node that joined.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Node {
    /// The node's name in the cluster.
    pub name: String,
    /// The id of the node's key, in hexadecimal.
    pub key: String,
    /// When it joined, in seconds since the Unix epoch.
    pub joined: u64,
    /// Last second of its latest certificate.
    pub expires: u64,
    /// The token it joined with; empty where a foreign authority certified it.
    pub token: String,
    /// Address at which the node said it can be dialled.
    #[serde(default)]
    pub address: String,
    /// Addresses at which its stages said that they can be dialled, by their numbers; none of a worker that has no stages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<u8, String>,
    /// When it was revoked.
    #[serde(default)]
    pub revoked: Option<u64>,
}

/// Standing of a node in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The node is a member of the cluster.
    Good,
    /// The node's certificate has expired: it was away for a while, and may come back.
    Away,
    /// The node may not join again.
    Revoked,
}

impl Node {
    /// The node's state at the time `now`, in seconds since the Unix epoch.
    pub fn standing(&self, now: u64) -> Standing {
        match self.revoked {
            Some(_) => Standing::Revoked,
            None if self.is_believed(now) => Standing::Good,
            None => Standing::Away,
        }
    }

    /// The name of one of its stages.
    pub fn stage_name(&self, number: u8) -> String {
        format!("{}.{number}", self.name)
    }

    /// The node as `brigade nodes` lists it: each of its stages under its own name and address, or itself.
    pub fn listed(&self) -> Vec<Self> {
        let stage = |(number, address): (&u8, &String)| Self {
            name: self.stage_name(*number),
            address: address.clone(),
            ..self.clone()
        };
        match self.stages.len() {
            0 => vec![self.clone()],
            _ => self.stages.iter().map(stage).collect(),
        }
    }

    /// Whether its certificate may still be valid.
    fn is_believed(&self, now: u64) -> bool {
        now <= self.expires.saturating_add(CLOCK_SKEW_S)
    }

    fn is_forgotten(&self, now: u64) -> bool {
        self.revoked.is_none() && now > self.expires.saturating_add(COMES_BACK_WITHIN_S)
    }
}

impl Roster {
    /// The roster of a folder.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(folder: &Folder, now: u64) -> Result<Self, TlsError> {
        let mut roster: Self = folder.read(FILE)?.unwrap_or_default();
        roster.nodes.retain(|node| !node.is_forgotten(now));
        Ok(roster)
    }

    /// Writes the roster back to its file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, folder: &Folder, lock: &Lock) -> Result<(), TlsError> {
        folder.write(lock, FILE, self)
    }

    /// All nodes, in the order in which they joined.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this key.
    pub fn by_key(&mut self, key: &KeyId) -> Option<&mut Node> {
        let key = key.to_string();
        self.nodes.iter_mut().find(|node| node.key == key)
    }

    /// Adds a node under the name it wishes, or under that with a number behind where another has it.
    ///
    /// # Errors
    /// There are too many.
    pub fn add(&mut self, node: Node, now: u64) -> Result<&Node, TlsError> {
        if self.nodes.len() >= MAX_NODES {
            let problem = format!("the cluster has {MAX_NODES} nodes: no more can join");
            return Err(TlsError::Malformed { what: FILE.to_owned(), problem });
        }
        let name = self.free_name(&node.name, now);
        self.nodes.push(Node { name, ..node });
        Ok(&self.nodes[self.nodes.len() - 1])
    }

    fn free_name(&self, wish: &str, now: u64) -> String {
        let has = |node: &&Node| node.standing(now) == Standing::Good;
        let taken: HashSet<&str> =
            self.nodes.iter().filter(has).map(|node| node.name.as_str()).collect();
        let numbered = (2..).map(|n| {
            let end = format!("-{n}");
            let kept = wish.len().min(MAX_PARTY_NAME_BYTES - end.len());
            format!("{}{end}", &wish[..kept])
        });
        let mut names = std::iter::once(wish.to_owned()).chain(numbered);
        // One of `MAX_NODES` + 1 names is free.
        names.find(|name| !taken.contains(name.as_str())).unwrap_or_else(|| wish.to_owned())
    }

    /// The address of the node or stage of this name, or of a key that begins like this; the newest of several. Of a node with
    /// stages it is the first one's.
    pub fn address_of(&self, which: &str) -> Option<String> {
        let is_key = which.len() >= MIN_KEY_DIGITS;
        let is_it = |node: &Node, name: &str| {
            name == which || node.name == which || (is_key && node.key.starts_with(which))
        };
        let known = self.nodes.iter().rev().filter(|node| node.revoked.is_none());
        let mut all = known.flat_map(|node| node.listed().into_iter().map(move |one| (node, one)));
        let found = all.find(|(node, one)| is_it(node, &one.name) && !one.address.is_empty());
        found.map(|(_, one)| one.address)
    }

    /// The node whose stage is called so.
    pub fn node_of_stage(&self, which: &str) -> Option<&Node> {
        let is_its = |node: &&Node| node.stages.keys().any(|n| node.stage_name(*n) == which);
        self.nodes.iter().find(|node| node.revoked.is_none() && is_its(node))
    }

    /// Revokes the nodes of this name or address, or of a key that begins like this; those that were found. A node with stages
    /// has the addresses of all of them.
    pub fn revoke(&mut self, which: &str, now: u64) -> Vec<Node> {
        let is_key = which.len() >= MIN_KEY_DIGITS;
        let is_it = |node: &Node| {
            let at = !which.is_empty()
                && (node.address == which || node.stages.values().any(|address| address == which));
            node.name == which || at || (is_key && node.key.starts_with(which))
        };
        let mut revoked = Vec::new();
        for node in self.nodes.iter_mut().filter(|node| is_it(node) && node.revoked.is_none()) {
            node.revoked = Some(now);
            revoked.push(node.clone());
        }
        revoked
    }

    /// Revoked keys whose certificates have not ended.
    pub fn revoked_keys(&self, now: u64) -> Vec<KeyId> {
        let gone = self.nodes.iter().filter(|node| node.revoked.is_some() && node.is_believed(now));
        gone.filter_map(|node| node.key.parse().ok()).collect()
    }
}

/// The number in the name of a stage: 2 of `lab.2`.
pub fn stage_number(name: &str) -> Option<u8> {
    name.rsplit_once('.')?.1.parse().ok()
}
