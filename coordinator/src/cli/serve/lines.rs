//! The lines of a server: one for each model that it serves, each with a supervisor, a driver, a journal, and a name under
//! which it holds workers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use brigade_http::{App, Door, Streams};
use brigade_line::admin::{self, Admin};
use brigade_line::journal::{Journal, Recovered};
use brigade_line::model::Model;
use brigade_worker::memory;
use tokio_util::sync::CancellationToken;

use super::front::Front;
use super::{ServeArgs, app_of, session_options};
use crate::cli::keeping::{Keeping, journal};
use crate::cli::session::{Session, SessionOptions, open_model};

/// A model with its line.
#[derive(Debug)]
pub struct Line {
    pub session: Session,
    folder: Option<PathBuf>,
    journal: Option<Journal>,
    recovered: Vec<Recovered>,
    max_seqs: u32,
    keeps: bool,
}

/// Starts a line for each model of a server. None is ready when this returns.
///
/// # Errors
/// A model, an address or a folder is no good, or two models want what only one can have.
pub async fn start(args: &ServeArgs, front: &Front) -> Result<Vec<Line>> {
    let all: Vec<&ServeArgs> = args.models().collect();
    check(&all)?;
    let several = all.len() > 1;
    let mut opened = Vec::new();
    for args in &all {
        let options = session_options(args, front.keys()).await?;
        opened.push((open_model(&options).await?, options));
    }
    if several {
        share_memory(&mut opened, memory::available_bytes());
    }
    let mut lines = Vec::new();
    for (args, (model, options)) in all.into_iter().zip(opened) {
        let name = several.then(|| model.name().to_owned());
        lines.push(Line::start(args, model, options, name).await?);
    }
    Ok(lines)
}

/// Refuses models that want the same worker, or all workers that join.
fn check(all: &[&ServeArgs]) -> Result<()> {
    let [first, others @ ..] = all else { return Ok(()) };
    if others.is_empty() {
        return Ok(());
    }
    ensure!(
        first.control.is_none(),
        "--control is for one model: workers that join serve the one that is chosen with -m NAME. Several models have workers of \
         their own: workers = N, or worker = [..], of each [[model]]"
    );
    let mut named = BTreeSet::new();
    for worker in all.iter().flat_map(|args| &args.line.worker) {
        ensure!(
            named.insert(worker),
            "two models name the worker {worker}: it has layers of one model, so start another `brigade worker` beside it for the \
             other"
        );
    }
    match all.iter().any(|args| args.trace.is_some()) {
        true => bail!("--trace is of one line: choose its model with -m NAME"),
        false => Ok(()),
    }
}

/// Local workers on CPUs for which nothing else is said may have the memory of their model's weights, and of what is free
/// beyond all weights as much as the others.
fn share_memory(opened: &mut [(Arc<Model>, SessionOptions)], free: Option<u64>) {
    let Some(free) = free else { return };
    let shares_in = |(_, options): &&mut (Arc<Model>, SessionOptions)| {
        let line = &options.line;
        line.worker.is_empty() && line.memory.is_none() && line.device.is_none()
    };
    let sharing: Vec<_> = opened.iter_mut().filter(shares_in).collect();
    let weights: u64 = sharing.iter().map(|(model, _)| model.weight_bytes()).sum();
    let free = free.saturating_sub(memory::RESERVE_BYTES);
    let each = free.saturating_sub(weights) / sharing.len().max(1) as u64;
    for (model, options) in sharing {
        let bytes = (model.weight_bytes() + each) / options.line.local_workers() as u64;
        tracing::info!(model = model.name(), bytes, "memory of each local worker");
        options.line.memory = Some(bytes);
    }
}

impl Line {
    async fn start(
        args: &ServeArgs,
        model: Arc<Model>,
        mut options: SessionOptions,
        name: Option<String>,
    ) -> Result<Self> {
        let (listen, data_dir) = (args.front.listen(), &args.line.data_dir);
        let keeping = args.keep_args.find(listen, data_dir, name.as_deref())?;
        let (own_name, folder) = keeping.map(Keeping::into_parts).unzip();
        options.own_name = own_name;
        options.called = name;
        let session = Session::start_with(model, options).await?;
        let of = |folder: &PathBuf| journal(folder, &session.model, args.kv_type, &args.line);
        let (journal, recovered) = folder.as_ref().map(of).transpose()?.unzip();
        let (max_seqs, keeps) = (args.max_seqs, args.keep != Some(0));
        let recovered = recovered.unwrap_or_default();
        Ok(Self { session, folder, journal, recovered, max_seqs, keeps })
    }

    /// What handlers have of it behind `door`; what the coordinator before this one had begun goes on.
    pub fn open(&mut self, door: Door) -> App {
        let streams = Streams::new(self.journal.clone());
        let app = app_of(&self.session, door, self.max_seqs);
        let app = App { streams, keeps: self.keeps, ..app };
        tokio::spawn(app.streams.clone().sweep(app.door.draining.clone()));
        brigade_http::go_on(&app, std::mem::take(&mut self.recovered));
        app
    }

    /// Where `brigade cluster` reaches it, until `stop`; it serves on where the system makes no socket there.
    pub fn open_admin_socket(&self, stop: &CancellationToken) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = admin::listen(folder, self.session.admin.clone(), stop.clone()) {
            no_socket(folder, &error);
        }
    }

    /// By which name operators ask for it, and who answers them.
    pub fn admin(&self) -> (String, Admin) {
        (self.session.model.name().to_owned(), self.session.admin.clone())
    }

    /// Ends it; its journal is whole then.
    ///
    /// # Errors
    /// As [`Session::end`].
    pub async fn end(self) -> Result<()> {
        let ended = self.session.end().await;
        if let Some(journal) = self.journal {
            journal.close();
        }
        ended
    }
}

fn no_socket(folder: &Path, error: &std::io::Error) {
    let folder = folder.display();
    tracing::warn!(
        %folder,
        %error,
        "no admin socket in the data folder: `brigade cluster` does not reach this server; orders can come to \
         /admin/cluster of the admin listener"
    );
}
