//! A server's data over restarts: its id for workers, and the journal of resumable requests.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use brigade_cluster::OwnName;
use brigade_line::journal::{Bounds, Journal, Recovered};
use brigade_line::model::Model;
use brigade_proto::address::Address;
use clap::{Args, ValueEnum};

use crate::cli::options::args::{KvArg, LineArgs};
use crate::cli::options::data_dir::DataDirArgs;

/// Name of the folder, below the server's, that has a folder for each of several models.
pub const MODELS: &str = "models";

/// Name of the folder of a model.
pub fn folder_of(model: &str) -> String {
    percent_encoding::utf8_percent_encode(model, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// Where a server keeps what it goes on from.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Restarts")]
pub struct KeepArgs {
    /// Keep resumable requests and their tokens in the data folder, to go on with them after this process was
    /// killed, and take over the workers that it had. A server on a port that the system chooses does so only where
    /// --data-dir names a folder
    #[arg(long, value_enum, default_value_t = Switch::On)]
    journal: Switch,
}

/// The data in the folder of a server.
#[derive(Debug)]
pub struct Keeping {
    /// The id by which workers know the coordinator.
    pub own_name: OwnName,
    folder: PathBuf,
}

impl KeepArgs {
    /// The folder of a server that listens at `listen`, or of one of its models; `None` where it keeps nothing.
    ///
    /// # Errors
    /// The folder cannot be used, or another server has it.
    pub fn find(
        &self,
        listen: &Address,
        data_dir: &DataDirArgs,
        model: Option<&str>,
    ) -> Result<Option<Keeping>> {
        let named = data_dir.data_dir.is_some();
        let Some(folder) = self.folder(listen, data_dir) else { return Ok(None) };
        let folder = match model {
            Some(model) => folder.join(MODELS).join(folder_of(model)),
            None => folder,
        };
        match OwnName::kept_in(&folder) {
            Ok(own_name) => Ok(Some(Keeping { own_name, folder })),
            // This folder was not named by the user. A machine without a home folder can serve too.
            Err(error) if !named => {
                tracing::warn!(%error, "no journal: requests do not survive a restart");
                Ok(None)
            }
            Err(error) => Err(error).context("--data-dir"),
        }
    }
}

impl KeepArgs {
    /// The folder of a server that listens at `listen`, also if another process uses it; `None` where it keeps
    /// nothing.
    pub fn folder(&self, listen: &Address, data_dir: &DataDirArgs) -> Option<PathBuf> {
        if self.journal == Switch::Off {
            return None;
        }
        let port = match listen {
            Address::Tcp { port, .. } => *port,
            Address::Unix(_) => 0,
        };
        if port == 0 && data_dir.data_dir.is_none() {
            return None;
        }
        let Some(folder) = data_dir.find() else {
            tracing::warn!(
                "no journal: neither --data-dir nor HOME names a folder for it; requests do not survive a restart"
            );
            return None;
        };
        Some(match port {
            0 => folder.join("serve"),
            port => folder.join(format!("serve-{port}")),
        })
    }
}

impl Keeping {
    /// The server's id, and the folder that [`journal`] is in.
    pub fn into_parts(self) -> (OwnName, PathBuf) {
        (self.own_name, self.folder)
    }
}

/// Opens the journal of requests to `model` in a server's folder; returns it with the requests in it.
///
/// # Errors
/// The journal cannot be read or written.
pub fn journal(
    folder: &Path,
    model: &Model,
    kv_type: KvArg,
    line: &LineArgs,
) -> Result<(Journal, Vec<Recovered>)> {
    let (name, bounds) = journal_of(model, kv_type, line);
    Ok(Journal::open(folder, &name, bounds)?)
}

/// Whether the journal in a server's folder has requests to `model` that were not over; it is not changed.
///
/// # Errors
/// The journal cannot be read.
pub fn has_requests(folder: &Path, model: &Model, kv_type: KvArg, line: &LineArgs) -> Result<bool> {
    let (name, bounds) = journal_of(model, kv_type, line);
    Ok(Journal::has_requests(folder, &name, bounds)?)
}

/// The name of everything that tokens depend on beside the request, and the limits of a journal's values.
fn journal_of(model: &Model, kv_type: KvArg, line: &LineArgs) -> (String, Bounds) {
    let bounds = Bounds { n_vocab: model.spec.n_vocab as u32 };
    let (model, kv, wire) = (model.identity(), kv_type, line.wire_type);
    (format!("{model} {kv:?} {wire:?}"), bounds)
}
