//! Revoked keys. Open connections are recorded by their peers' keys, so that even a lane of several hours ends as
//! soon as its peer is revoked.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use super::hangup::Hangup;
use super::key::{KEY_ID_BYTES, KeyId};
use super::party::Party;

/// Keys a process remembers as revoked. A cluster forgets those whose certificates have ended.
pub const MAX_REVOKED: usize = 512;

/// Keys that are no longer believed.
#[derive(Debug, Default)]
pub struct Revoked {
    keys: RwLock<HashSet<KeyId>>,
    open: Mutex<Vec<(KeyId, Weak<Hangup>)>>,
}

impl Revoked {
    /// Whether `key` is revoked.
    pub fn has(&self, key: &KeyId) -> bool {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    /// Whether a party's key is revoked, or that of its node.
    pub fn has_party(&self, party: &Party) -> bool {
        self.has(&party.key) || party.node.is_some_and(|node| self.has(&node))
    }

    /// All revoked keys, one behind the other, as they cross the wire.
    pub fn to_bytes(&self) -> Vec<u8> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().flat_map(|key| *key.as_bytes()).collect()
    }

    /// Keys as [`Revoked::to_bytes`] wrote them; `None` where they are cut off, or too many.
    pub fn from_bytes(bytes: &[u8]) -> Option<Vec<KeyId>> {
        let (keys, rest) = bytes.as_chunks::<KEY_ID_BYTES>();
        if !rest.is_empty() || keys.len() > MAX_REVOKED {
            return None;
        }
        keys.iter().map(|key| KeyId::from_bytes(key)).collect()
    }

    /// Believes exactly these keys no longer, and ends their connections.
    pub fn set(&self, keys: impl IntoIterator<Item = KeyId>) {
        let keys = keys.into_iter().collect();
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        self.end_connections();
    }

    /// Revokes these keys too, and ends their connections. Beyond [`MAX_REVOKED`] a new key is an error in the log,
    /// which asks for expired ones to be dropped.
    pub fn add(&self, keys: &[KeyId]) {
        let mut known = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let new: Vec<KeyId> = keys.iter().filter(|key| !known.contains(key)).copied().collect();
        if new.is_empty() {
            return;
        }
        for key in new {
            if known.len() >= MAX_REVOKED {
                tracing::error!(%key, "not revoked here: {MAX_REVOKED} keys are already; restart this process");
                continue;
            }
            tracing::warn!(key = key.short(), "a key was revoked: its connections end");
            known.insert(key);
        }
        drop(known);
        self.end_connections();
    }

    /// Keeps an open connection to a party in mind; false where it is revoked already.
    pub(super) fn watch(&self, party: &Party, hangup: &Arc<Hangup>) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, hangup)| hangup.strong_count() > 0);
        let keys = std::iter::once(party.key).chain(party.node);
        open.extend(keys.map(|key| (key, Arc::downgrade(hangup))));
        drop(open);
        // After it is in the list: one that is revoked in between is cut by either.
        !self.has_party(party)
    }

    fn end_connections(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, hangup) in open.iter().filter(|(key, _)| self.has(key)) {
            if let Some(hangup) = hangup.upgrade() {
                hangup.now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Role;

    #[test]
    fn connections_that_have_ended_are_not_kept_in_mind() {
        let (revoked, key) = (Revoked::default(), KeyId::of_spki(b"lab"));
        let lab = Party { role: Role::Worker, name: "lab".into(), key, node: None };
        let open = Arc::default();
        assert!(revoked.watch(&lab, &open));
        for _ in 0..100 {
            assert!(revoked.watch(&lab, &Arc::default()));
        }
        // The one that is open, and the last one, whose end nobody has seen.
        assert_eq!(revoked.open.lock().unwrap().len(), 2);
        revoked.set([key]);
        assert!(open.is_made(), "it is cut");
        assert!(!revoked.watch(&lab, &Arc::default()), "nobody with this key comes in");
    }

    #[test]
    fn stages_go_with_their_node() {
        let (revoked, node) = (Revoked::default(), KeyId::of_spki(b"lab"));
        let party = |name: &str, node| Party {
            role: Role::Worker,
            name: name.into(),
            key: KeyId::of_spki(name.as_bytes()),
            node,
        };
        let (stage, other) = (party("lab.1", Some(node)), party("attic", None));
        let [of_stage, of_other] = [&stage, &other].map(|party| {
            let open = Arc::default();
            assert!(revoked.watch(party, &open));
            open
        });
        revoked.add(&[node]);
        assert!(of_stage.is_made() && !of_other.is_made());
        assert!(!revoked.watch(&stage, &Arc::default()) && revoked.has_party(&stage));
    }
}
