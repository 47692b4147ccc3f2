//! Kept prompt states by the names of keys: lists them, and drops them.

use std::collections::BTreeMap;

use brigade_sched::Share;

use crate::cached::{CachedOwner, Dropped};
use crate::handle::Engine;
use crate::keys::KeyRing;

/// Names what belongs to requests without a key; no key can be called so.
pub const NO_KEY: &str = "(none)";

/// Names what belongs to keys that are not in force any more.
const GONE: &str = "(gone)";

/// Drops the kept prompts of all owners.
pub const ALL: &str = "all";

/// Shows and drops kept prompts, by the names of keys; clones share it.
#[derive(Clone, Debug)]
pub struct Cache {
    engine: Engine,
    keys: Option<KeyRing>,
}

impl Cache {
    /// The cache of a line. `keys` has the names of owners; `None`: the server has no keys.
    pub fn new(engine: Engine, keys: Option<KeyRing>) -> Self {
        Self { engine, keys }
    }

    fn names(&self) -> BTreeMap<u64, String> {
        let keys = self.keys.as_ref().map(KeyRing::now);
        let accounts = keys.iter().flat_map(|keys| keys.accounts());
        let named = accounts.map(|account| (account.number(), account.record().name.clone()));
        named.chain([(Share::default().owner, NO_KEY.to_owned())]).collect()
    }

    /// All owners with their kept states, as they were at most a second ago. The largest owner comes first.
    pub fn owners(&self) -> Vec<CachedOwner> {
        let (names, cached) = (self.names(), self.engine.cached());
        let name = |number: &u64| names.get(number).cloned().unwrap_or_else(|| GONE.to_owned());
        let named =
            cached.0.iter().map(|(number, of)| CachedOwner { owner: name(number), ..of.clone() });
        let mut owners: Vec<CachedOwner> = named.collect();
        owners.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.owner.cmp(&b.owner)));
        owners
    }

    /// Drops the kept prompts of `owner`, by its name, or of all owners.
    ///
    /// # Errors
    /// No key has this name; there is no line; a worker did not do it.
    pub async fn drop_of(&self, owner: &str) -> Result<Dropped, String> {
        let number = match owner {
            ALL => None,
            name => {
                let names = self.names();
                let number = names.iter().find(|(_, of)| *of == name).map(|(number, _)| *number);
                let unknown = || {
                    format!(
                        "no key is called {name:?}: `brigade cluster cache` lists the keys that have kept states; \
                             {NO_KEY:?} stands for requests without a key, and {ALL:?} drops everything"
                    )
                };
                Some(number.ok_or_else(unknown)?)
            }
        };
        self.engine.drop_cached(number).await.map_err(|error| error.to_string())
    }
}
