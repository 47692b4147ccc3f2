//! The models of a folder (`--models-dir`): each is loaded on demand, and found without a restart. Unusable files are
//! listed with the reason.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use brigade_http::{Looking, Member, Source};
use brigade_hub::folder::{self, Filed};
use brigade_line::admin::ModelState;
use brigade_line::keys::KeyRing;
use brigade_worker::machine::memory;

use super::lines::Served;
use super::on_demand::Stable;
use super::pool::Shared;
use super::slot::Slot;
use super::{Load, ServeArgs};

/// How often the folder is looked at, at most.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// A file that was written to within this time is looked at again: it may not be whole.
const FRESH: Duration = Duration::from_secs(2);

/// The state of a model of the folder that cannot be used.
const DAMAGED: &str = "damaged";

/// A folder of models.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Brigade's own folder inside, which is left out.
    own: PathBuf,
    /// Options of each of its models.
    base: Arc<ServeArgs>,
    keys: Option<KeyRing>,
    shared: Option<Arc<Shared>>,
    free: Option<u64>,
    stable: Arc<Stable>,
    found: Mutex<Found>,
    /// The lock of the task that lists the folder, with the time of the last listing.
    looks: tokio::sync::Mutex<Option<Instant>>,
}

/// Models by name.
type Found = BTreeMap<String, Seen>;

#[derive(Clone, Debug, PartialEq)]
struct Seen {
    files: Stamp,
    is: Is,
}

/// The state of a model's files: path, bytes, and time of writing.
type Stamp = Vec<(PathBuf, u64, Option<SystemTime>)>;

#[derive(Clone, Debug)]
enum Is {
    /// The model can be used.
    Good(Arc<Slot>),
    /// Why it cannot be used.
    Bad(String),
}

impl PartialEq for Is {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Good(a), Self::Good(b)) => Arc::ptr_eq(a, b),
            (Self::Bad(a), Self::Bad(b)) => a == b,
            _ => false,
        }
    }
}

impl Folder {
    /// The folder of these options, if they have one.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub async fn open(
        args: &ServeArgs,
        keys: Option<KeyRing>,
        shared: Option<Arc<Shared>>,
        stable: Arc<Stable>,
    ) -> Result<Option<Arc<Self>>> {
        let Some(base) = args.folder.clone() else { return Ok(None) };
        let settings = base.model.hub.settings(&base.line.data_dir)?;
        let path = settings.models_dir.context("--models-dir is not a folder")?;
        let free = memory::available_bytes().map(|free| free.saturating_sub(memory::RESERVE_BYTES));
        let (found, looks) = (Mutex::default(), tokio::sync::Mutex::default());
        let own = settings.folder;
        let folder = Arc::new(Self { path, own, base, keys, shared, free, stable, found, looks });
        // Errors of the folder end the start. Later ones go to the log.
        folder.update().await?;
        *folder.looks.lock().await = Some(Instant::now());
        Ok(Some(folder))
    }

    /// The states of models that cannot be used.
    pub fn damaged(&self) -> Vec<ModelState> {
        let found = self.found();
        let bad = found.iter().filter_map(|(name, seen)| match &seen.is {
            Is::Good(_) => None,
            Is::Bad(why) => Some((name, why)),
        });
        let state = |(name, why): (&String, &String)| ModelState {
            name: name.clone(),
            state: DAMAGED.to_owned(),
            reason: Some(why.clone()),
            ..ModelState::default()
        };
        bad.map(state).collect()
    }

    /// The models of the folder that can be used, by name.
    pub fn members(&self) -> Vec<Member> {
        let found = self.found();
        let good = found.values().filter_map(|seen| match &seen.is {
            Is::Good(slot) => Some(slot.clone()),
            Is::Bad(_) => None,
        });
        good.map(|slot| self.stable.member(slot)).collect()
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        // It is changed as a whole.
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the folder again. Returns whether its models have changed.
    async fn update(&self) -> Result<bool> {
        let (path, own) = (self.path.clone(), self.own.clone());
        let listed = tokio::task::spawn_blocking(move || {
            let all = folder::list(&path, &own)?;
            Ok::<_, anyhow::Error>(all.into_iter().map(|filed| (stamp(&filed), filed)).collect())
        });
        let listed: Vec<(Stamp, Filed)> = listed.await.context("looking at the folder")??;
        let before = self.found().clone();
        let mut now = Found::new();
        for (files, filed) in listed {
            let seen = match before.get(&filed.name) {
                Some(seen) if seen.files == files => seen.clone(),
                _ => self.see(&filed, files).await,
            };
            now.insert(filed.name, seen);
        }
        for (name, seen) in &before {
            if let Is::Good(slot) = &seen.is
                && now.get(name).is_none_or(|now| now.is != seen.is)
            {
                tracing::info!(
                    model = name,
                    "the model's file in --models-dir was removed or replaced"
                );
                slot.retire();
            }
        }
        let is_new = now != before;
        *self.found() = now;
        Ok(is_new)
    }

    /// A file that was not there before.
    async fn see(&self, filed: &Filed, files: Stamp) -> Seen {
        let is_fresh = |at: &SystemTime| at.elapsed().map_or(true, |since| since < FRESH);
        if files.iter().filter_map(|(_, _, at)| at.as_ref()).any(is_fresh) {
            // No stamp of it is kept: it is looked at again.
            let why = "it has just been written to, and may not be whole".to_owned();
            return Seen { files: Vec::new(), is: Is::Bad(why) };
        }
        let is = match self.try_open(filed).await {
            Ok(slot) => Is::Good(slot),
            Err(error) => Is::Bad(format!("{error:#}")),
        };
        match &is {
            Is::Good(_) => tracing::info!(model = filed.name, "a model of the folder"),
            Is::Bad(why) => {
                tracing::warn!(model = filed.name, why, "a file of the folder cannot be used")
            }
        }
        Seen { files, is }
    }

    async fn try_open(&self, filed: &Filed) -> Result<Arc<Slot>> {
        if let Some(why) = &filed.wrong {
            anyhow::bail!("{why}");
        }
        let mut args = (*self.base).clone();
        args.model.model = filed.paths.first().cloned();
        args.served_model_name = vec![filed.name.clone()];
        args.load = Load::Demand;
        let served = Served::of_folder(args, self.keys.clone(), self.shared.clone(), self.free);
        self.stable.add(served.await?)
    }
}

impl Source for Folder {
    fn look(&self) -> Looking<'_> {
        Box::pin(async {
            let mut looked = self.looks.lock().await;
            if looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
                return None;
            }
            let is_new = self.update().await.unwrap_or_else(|error| {
                tracing::error!(
                    error = format!("{error:#}"),
                    "the folder of models cannot be read"
                );
                false
            });
            *looked = Some(Instant::now());
            is_new.then(|| self.members())
        })
    }

    fn is_damaged(&self, name: &str) -> bool {
        matches!(self.found().get(name), Some(Seen { is: Is::Bad(_), .. }))
    }
}

fn stamp(filed: &Filed) -> Stamp {
    let of = |path: &Path| {
        let meta = path.metadata().ok();
        let bytes = meta.as_ref().map_or(0, |meta| meta.len());
        (path.to_owned(), bytes, meta.and_then(|meta| meta.modified().ok()))
    };
    filed.paths.iter().map(|path| of(path)).collect()
}
