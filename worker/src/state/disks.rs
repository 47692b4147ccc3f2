//! What the worker's disks have, as heartbeats say it, and what is to be given back. That takes a while, so it is done beside
//! them.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use brigade_proto::control::DiskPart;

use super::Worker;
use crate::weights::cache::Shares;

/// How often the disks are looked at.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// The last figures.
#[derive(Debug, Default)]
pub(super) struct Disks(Mutex<Option<DiskPart>>);

impl Disks {
    /// `None`: nothing has been looked at yet.
    pub(super) fn last(&self) -> Option<DiskPart> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// Looks at the disks again and again, lets go of what other workers have removed there, and makes room for others of the node.
    pub async fn look_at_disks(self: Arc<Self>) -> Infallible {
        loop {
            let worker = self.clone();
            if let Err(error) = tokio::task::spawn_blocking(move || worker.look_once()).await {
                tracing::error!(%error, "the worker cannot look at its disks");
            }
            tokio::time::sleep(LOOKS_EVERY).await;
        }
    }

    /// What another process changes at this moment is looked at the next time.
    fn look_once(&self) {
        let cache = &self.loader.cache;
        let disk = self.copies.disk();
        let [checkpoints, checkpoints_limit] =
            disk.as_ref().and_then(|disk| disk.used()).unwrap_or_default();
        disk.iter().for_each(|disk| disk.forget_removed());
        self.give_back_room();
        let shares = cache.shares();
        let (limit, folder, reads_files) =
            (cache.limit_bytes(), cache.folder(), self.loader.model_files);
        let mut last = self.disks.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = || last.map(|last| Shares { nbytes: last.pinned, own_bytes: last.pinned_own });
        let Some(Shares { nbytes: pinned, own_bytes: pinned_own }) = shares.or_else(before) else {
            return;
        };
        *last = Some(DiskPart {
            pinned,
            limit,
            checkpoints,
            checkpoints_limit,
            folder,
            pinned_own,
            reads_files,
        });
    }
}
