//! All models of a server: those whose lines start with it, and those that are loaded on demand.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use brigade_http::{Door, Member};
use brigade_line::admin::{Admin, ModelState};
use brigade_line::keys::KeyRing;
use brigade_worker::machine::memory;
use tokio::task::JoinSet;

use super::folder::Folder;
use super::lines::{Line, Served};
use super::on_demand::Stable;
use super::pool::Shared;
use super::pulled::Pulled;
use super::standing::Standings;
use super::{ServeArgs, failed, is_promising, orders};

/// The models, with their lines.
#[derive(Debug)]
pub struct Models {
    /// The lines that started with the server.
    pub lines: Vec<Line>,
    stable: Option<Arc<Stable>>,
    folder: Option<Arc<Folder>>,
    pulled: Option<Arc<Pulled>>,
    /// Whether each is loaded on demand, in the order of the file.
    order: Vec<bool>,
}

impl Models {
    /// Starts the lines of models that are loaded with the server, without waiting until they are ready. `folder` has
    /// operators' orders about the others.
    ///
    /// # Errors
    /// An address or a folder is invalid.
    pub async fn start(
        served: Vec<Served>,
        door: &Arc<Door>,
        folder: Option<&Path>,
        args: &ServeArgs,
    ) -> Result<Self> {
        let free = memory::available_bytes().map(|free| free.saturating_sub(memory::RESERVE_BYTES));
        let order = served.iter().map(Served::is_on_demand).collect();
        let (on_demand, fixed): (Vec<_>, Vec<_>) =
            served.into_iter().partition(Served::is_on_demand);
        let taken: u64 = fixed.iter().map(Served::host_memory).sum();
        let mut lines = Vec::new();
        for served in fixed {
            let line = served.start(None).await?;
            line.open_admin_socket(&door.draining);
            lines.push(line);
        }
        let budget = free.unwrap_or(u64::MAX).saturating_sub(taken);
        let stable = if on_demand.is_empty() && args.comes().next().is_none() {
            None
        } else {
            let standings = Standings::open(folder)?;
            Some(Stable::new(on_demand, budget, args.max_loaded, door.clone(), standings)?)
        };
        Ok(Self { lines, stable, folder: None, pulled: None, order })
    }

    /// Looks for the models of the arguments' folder, if they have one, and for those that requests have fetched, and loads
    /// what is to be loaded first.
    ///
    /// # Errors
    /// The folder or the lock cannot be read, or the options contradict each other.
    pub async fn open_more(
        &mut self,
        args: &ServeArgs,
        keys: Option<KeyRing>,
        shared: Option<Arc<Shared>>,
    ) -> Result<(Option<Arc<Folder>>, Option<Arc<Pulled>>)> {
        let Some(stable) = &self.stable else { return Ok((None, None)) };
        let (keys_again, shared_again) = (keys.clone(), shared.clone());
        self.folder = Folder::open(args, keys, shared, stable.clone()).await?;
        self.pulled = Pulled::open(args, keys_again, shared_again, stable.clone()).await?;
        tokio::spawn(stable.clone().load_first());
        Ok((self.folder.clone(), self.pulled.clone()))
    }

    /// All models, for the server's door. Requests of the coordinator before this one go on.
    pub fn members(&mut self, door: &Arc<Door>) -> Vec<Member> {
        let mut fixed = self.lines.iter_mut().map(|line| Member::fixed(line.open(door.clone())));
        let mut on_demand = self.stable.iter().flat_map(Stable::members);
        let of = |is_on_demand: &bool| if *is_on_demand { on_demand.next() } else { fixed.next() };
        self.order.iter().filter_map(of).collect()
    }

    /// The handle for operators' questions about all models; `None` where all are loaded with the server.
    pub fn operators(&self) -> Option<Admin> {
        let stable = self.stable.clone()?;
        let always = |line: &Line| ModelState {
            name: line.session.model.name().to_owned(),
            state: "always".to_owned(),
            pinned: true,
            ..ModelState::default()
        };
        let always = self.lines.iter().map(always).collect();
        Some(orders::answer(orders::Known {
            stable,
            folder: self.folder.clone(),
            pulled: self.pulled.clone(),
            always,
        }))
    }

    /// Whether requests may be answered.
    pub async fn are_promising(&self) -> bool {
        for line in &self.lines {
            if is_promising(&line.session).await {
                return true;
            }
        }
        self.stable.is_some()
    }

    /// The reason why no request will ever be answered; never where models are loaded on demand.
    pub async fn all_failed(&self) -> String {
        let mut reasons = Vec::new();
        for line in &self.lines {
            let reason = failed(&line.session).await;
            reasons.push(match &self.lines[..] {
                [_] => reason,
                _ => format!("{}: {reason}", line.session.model.name()),
            });
        }
        if self.stable.is_some() {
            std::future::pending::<()>().await;
        }
        reasons.join("; ")
    }

    /// Ends all lines beside each other; the first error.
    pub async fn end(self) -> Result<()> {
        let mut ending = JoinSet::new();
        if let Some(stable) = self.stable {
            ending.spawn(async move {
                stable.end().await;
                Ok(())
            });
        }
        self.lines.into_iter().for_each(|line| drop(ending.spawn(line.end())));
        let mut all = Ok(());
        while let Some(ended) = ending.join_next().await {
            all = all.and(ended.context("a line's end").flatten());
        }
        all
    }
}
