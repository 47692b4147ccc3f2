//! Publishes the list of kept states for operators, and drops states at their order.

use std::sync::Arc;

use brigade_sched::Event;
use tokio::sync::{oneshot, watch};

use super::Driver;
use crate::cached::{Cached, CachedState, Dropped};
use crate::handle::{Running, StateError, Status};
use crate::measured::metrics;
use crate::stages::states::StateAccess;

/// Channels that publish the driver's status, its running requests and its kept states.
pub(super) struct Shown {
    pub(super) status: watch::Sender<Status>,
    pub(super) running: watch::Sender<Arc<[Running]>>,
    pub(super) cached: watch::Sender<Arc<Cached>>,
}

/// Something that an operator drops.
#[derive(Debug)]
pub(super) struct Drop {
    owner: Option<u64>,
    reply: oneshot::Sender<Result<Dropped, StateError>>,
}

impl Driver {
    /// Publishes the list of kept states.
    pub(super) fn show_cached(&self) {
        let seen = self.sched.seen(self.now());
        let info = self.line.as_ref().map(|line| line.info.clone()).unwrap_or_default();
        let (page_bytes, state_bytes) = info.kept_bytes;
        let bytes = |pages: u32, states: u32| {
            u64::from(pages) * page_bytes + u64::from(states) * state_bytes
        };
        let (mut cached, mut in_memory) = (Cached::default(), 0);
        for owner in seen.owners {
            let of = cached.0.entry(owner.owner).or_default();
            (of.states, of.hits) = (owner.states, owner.hits);
            of.bytes = bytes(owner.pages, owner.states);
            in_memory += of.bytes;
        }
        for state in seen.states {
            let shown = CachedState {
                tokens: state.tokens,
                bytes: bytes(state.pages, 1),
                idle_seconds: state.idle_us / 1_000_000,
                hits: state.hits,
                recorded: self.prefixes.recorded.contains(&state.id),
            };
            cached.add(state.owner, shown);
        }
        metrics::prefixes_in_memory(in_memory);
        self.cached.send_replace(Arc::new(cached));
    }

    /// Drops the kept states of an owner, or of all, once none of them is being written or loaded.
    pub(super) fn drop_cached(
        &mut self,
        owner: Option<u64>,
        reply: oneshot::Sender<Result<Dropped, StateError>>,
    ) {
        if self.line.is_none() {
            let reason = "there is no line, so workers cannot be told: try again when it is up";
            let failed = StateError::Failed { reason: reason.to_owned() };
            // The client may have gone.
            let _ = reply.send(Err(failed));
            return;
        }
        self.prefixes.drops.push_back(Drop { owner, reply });
        self.keep_prefixes();
    }

    pub(super) fn drop_next(&mut self, Drop { owner, reply }: Drop) {
        let n_kept = |driver: &Self| {
            let owners = driver.sched.seen(driver.now()).owners.into_iter();
            let theirs = owners.filter(|of| owner.is_none_or(|owner| of.owner == owner));
            theirs.map(|of| of.states).sum::<u32>()
        };
        let before = n_kept(self);
        self.step(Event::Forget(owner));
        let left = n_kept(self);
        self.show_cached();
        let salt = self.salt();
        let dropped = Dropped { states: before - left, left, records: salt.is_some() };
        tracing::info!(
            states = dropped.states,
            left,
            all = owner.is_none(),
            "kept prompts are dropped"
        );
        let Some(salt) = salt else {
            // The client may have gone.
            let _ = reply.send(Ok(dropped));
            return self.keep_prefixes();
        };
        let stays = self.prefixes.owners().into_iter();
        let stays = stays.filter(|other| owner.is_some_and(|owner| *other != owner));
        let keys = stays.map(|other| salt.owner(other)).collect();
        self.drop_records(async move |access: Arc<dyn StateAccess>| {
            let result = access.keep_prefixes_of(salt.realm(), keys).await;
            let failed = |reason| StateError::Failed { reason };
            // The client may have gone.
            let _ = reply.send(result.clone().map(|()| dropped).map_err(failed));
            result
        });
    }
}
