//! Decides which model is fetched next, without a clock, a network or a thread.
//!
//! A fetch is charged to the key whose request causes it, as a load is: a key has one at a time, and of several keys the one
//! goes first whose last fetch is longest ago.

use std::collections::BTreeMap;

use super::turns::Key;

/// Models that are fetched at once: they share one network.
const AT_ONCE: usize = 2;

/// A request's wish for a model.
pub type WishId = u64;

#[derive(Clone, Debug)]
struct Want {
    model: String,
    key: Key,
    id: WishId,
}

/// The order of fetches.
#[derive(Debug, Default)]
pub struct Fetches {
    /// Wishes for models whose fetch has not begun, in the order in which they came.
    wants: Vec<Want>,
    under_way: Vec<(String, Key)>,
    /// The number of fetches so far.
    begun: u64,
    /// The number of each key's last one.
    last: BTreeMap<Key, u64>,
    ids: WishId,
}

impl Fetches {
    /// A request of this key needs a model that is not here.
    pub fn want(&mut self, model: &str, key: Key) -> WishId {
        self.ids += 1;
        if !self.is_under_way(model) {
            self.wants.push(Want { model: model.to_owned(), key, id: self.ids });
        }
        self.ids
    }

    /// A request waits no more. Returns whether somebody else waits for its model, or it is being fetched.
    pub fn forget(&mut self, id: WishId, model: &str) -> bool {
        self.wants.retain(|want| want.id != id);
        self.is_under_way(model) || self.wants.iter().any(|want| want.model == model)
    }

    /// The model whose fetch begins now.
    pub fn next(&mut self) -> Option<String> {
        if self.under_way.len() >= AT_ONCE {
            return None;
        }
        let is_fetching = |key: Key| key.is_some() && self.under_way.iter().any(|(_, k)| *k == key);
        let may = |want: &&Want| !is_fetching(want.key);
        let last = |key: &Key| self.last.get(key).copied().unwrap_or(0);
        let first = self.wants.iter().filter(may).min_by_key(|want| (last(&want.key), want.id))?;
        let Want { model, key, .. } = first.clone();
        self.wants.retain(|want| want.model != model);
        self.begun += 1;
        self.last.insert(key, self.begun);
        self.under_way.push((model.clone(), key));
        Some(model)
    }

    /// A fetch has ended, in whatever way.
    pub fn ended(&mut self, model: &str) {
        self.under_way.retain(|(other, _)| other != model);
    }

    fn is_under_way(&self, model: &str) -> bool {
        self.under_way.iter().any(|(other, _)| other == model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(fetches: &mut Fetches) -> String {
        fetches.next().unwrap_or_default()
    }

    #[test]
    fn a_model_that_many_want_is_fetched_once() {
        let mut fetches = Fetches::default();
        let ids: Vec<WishId> = (0..50).map(|i| fetches.want("a", Some(i % 5))).collect();
        assert_eq!((next(&mut fetches), next(&mut fetches)), ("a".to_owned(), String::new()));
        let late = fetches.want("a", Some(9));
        assert_eq!(fetches.next(), None);
        // Those who leave do not end it.
        assert!(ids.into_iter().chain([late]).all(|id| fetches.forget(id, "a")));
        fetches.ended("a");
        assert_eq!(fetches.next(), None);
        let id = fetches.want("b", None);
        assert!(!fetches.forget(id, "b"), "nobody waits for it, and it has not begun");
        assert_eq!(fetches.next(), None);
    }

    #[test]
    fn a_key_has_one_at_a_time_and_keeps_no_other_from_its_own() {
        let mut fetches = Fetches::default();
        for model in ["a1", "a2", "a3"] {
            fetches.want(model, Some(1));
        }
        fetches.want("b1", Some(2));
        fetches.want("c1", Some(3));
        assert_eq!((next(&mut fetches), next(&mut fetches)), ("a1".to_owned(), "b1".to_owned()));
        assert_eq!(fetches.next(), None, "two at once");
        fetches.ended("a1");
        assert_eq!(next(&mut fetches), "c1", "its key has had none");
        fetches.ended("b1");
        fetches.ended("c1");
        fetches.want("b2", Some(2));
        assert_eq!((next(&mut fetches), next(&mut fetches)), ("a2".to_owned(), "b2".to_owned()));
    }
}
