//! Revoked keys. Open connections are recorded by their peers' keys, so that even a lane of several hours ends as
//! soon as its peer is revoked.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use super::hangup::Hangup;
use super::key::{KEY_ID_BYTES, KeyId};

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

    /// Keeps an open connection in mind; false where its key is revoked already.
    pub(super) fn watch(&self, key: KeyId, hangup: &Arc<Hangup>) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, hangup)| hangup.strong_count() > 0);
        open.push((key, Arc::downgrade(hangup)));
        drop(open);
        // After it is in the list: one that is revoked in between is cut by either.
        !self.has(&key)
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

    #[test]
    fn connections_that_have_ended_are_not_kept_in_mind() {
        let (revoked, key) = (Revoked::default(), KeyId::of_spki(b"lab"));
        let open = Arc::default();
        assert!(revoked.watch(key, &open));
        for _ in 0..100 {
            assert!(revoked.watch(key, &Arc::default()));
        }
        // The one that is open, and the last one, whose end nobody has seen.
        assert_eq!(revoked.open.lock().unwrap().len(), 2);
        revoked.set([key]);
        assert!(open.is_made(), "it is cut");
        assert!(!revoked.watch(key, &Arc::default()), "nobody with this key comes in");
    }
}
