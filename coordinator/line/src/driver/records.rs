//! Tasks beside the driver that write states to the workers' records, find them and load them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_sched::{KeptOf, RequestId};

use crate::stages::prefix_names::{Names, Salt};
use crate::stages::states::{Choice, PrefixChoice, PutSlot, StateAccess};

/// How long workers may take to say which copies they have of all sequences of a lost line.
const FIND_ALL_WITHIN: Duration = Duration::from_secs(5);

/// A state that is to be loaded.
#[derive(Debug)]
pub(super) struct Load {
    pub request: RequestId,
    pub names: Names,
    pub choice: PrefixChoice,
}

/// The result of a load.
#[derive(Debug)]
pub(super) struct Loaded {
    pub request: RequestId,
    pub len: u32,
    pub nbytes: u64,
    pub took: Duration,
    pub result: Result<u64, String>,
}

/// A state that is to be written.
#[derive(Debug)]
pub(super) struct Save {
    pub salt: Salt,
    pub of: KeptOf,
    /// The last ubatch that may have changed it, where it may go while it is written; `None`: it is pinned.
    pub unchanged_since: Option<u64>,
}

/// The result of writing a state.
#[derive(Debug)]
pub(super) struct Saved {
    /// Its length in tokens.
    pub len: u32,
    pub was_pinned: bool,
    /// Bytes that were written.
    pub result: Result<u64, String>,
}

/// Writes a kept state.
pub(super) async fn save(access: &Arc<dyn StateAccess>, save: Save) -> Saved {
    let Save { salt, of: KeptOf { kept, space, owner }, unchanged_since } = save;
    let (slot, len) = (kept.slot, kept.tokens.len() as u32);
    let write = async {
        let names = names(salt, space, owner, kept.tokens).await?;
        access.save_prefix(slot, unchanged_since, &names).await
    };
    Saved { len, was_pinned: unchanged_since.is_none(), result: write.await }
}

/// Loads the records that were found.
pub(super) async fn load(access: &Arc<dyn StateAccess>, to: PutSlot, load: Load) -> Loaded {
    let Load { request, names, choice } = load;
    let (begun, len, nbytes) = (Instant::now(), choice.len, choice.nbytes);
    let result = access.load_prefix(to, &names, choice).await;
    Loaded { request, len, nbytes, took: begun.elapsed(), result }
}

/// Looks for records of sequences of which there are no copies: their namespaces, owners and tokens.
pub(super) async fn instead_of_copies(
    access: &Arc<dyn StateAccess>,
    salt: Salt,
    found: &mut [Option<Choice>],
    sought: impl Iterator<Item = ((Vec<u8>, u64), Vec<u32>)>,
) {
    let deadline = tokio::time::Instant::now() + FIND_ALL_WITHIN;
    for (choice, ((space, owner), tokens)) in found.iter_mut().zip(sought) {
        if choice.is_some() {
            continue;
        }
        let look = async {
            let names = Arc::new(names(salt, space, owner, tokens).await?);
            let found = access.find_prefix(&names).await?;
            Ok(found.map(|found| (names, found)))
        };
        let looked = tokio::time::timeout_at(deadline, look).await;
        let looked = looked.unwrap_or_else(|_| Err("workers did not answer in time".to_owned()));
        match looked {
            Ok(found) => {
                *choice = found.map(|(names, PrefixChoice { len, has_rest, sources, .. })| {
                    let (kept, records) = (vec![false; sources.len()], Some((names, has_rest)));
                    Choice { len, sources, kept, records }
                });
            }
            Err(why) => {
                let why: String = why;
                tracing::warn!(
                    why,
                    "it is not known whether workers have records of streams that go on"
                );
                return;
            }
        }
    }
}

/// The names of tokens, which are hashed beside the loop.
pub(super) async fn names(
    salt: Salt,
    space: Vec<u8>,
    owner: u64,
    tokens: Vec<u32>,
) -> Result<Names, String> {
    let named = tokio::task::spawn_blocking(move || Names::of(salt, &space, owner, tokens));
    named.await.map_err(|error| error.to_string())
}
