//! From a command's arguments to its cluster: the sources of workers, and the settings of stages.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use brigade_cluster::pki::{Folder, Pki};
use brigade_cluster::{ClusterConfig, Demand, JoinHint, LocalOptions, Seat, Source, StageOptions};
use brigade_line::model::Model;
use brigade_plan::HandCut;
use brigade_proto::address::Address;
use brigade_proto::control::KvType;
use brigade_worker::host;
use brigade_worker::machine::numa::Numa;

use crate::cli::options::args::{KvArg, LineArgs, LogFormat};
use crate::cli::options::security::Security;
use crate::cli::running::gpu_shares;
use crate::cli::running::session::SessionOptions;

/// How workers come to a line by themselves.
#[derive(Clone, Debug)]
pub enum Joins {
    /// They join at this address; so many are waited for.
    At(Address, usize),
    /// The server's pool lends them.
    Lent {
        /// The line's place there.
        seat: Arc<Seat>,
        /// The number of workers to wait for.
        expected: usize,
        /// The command shown while machines are missing.
        how_to_join: JoinHint,
    },
}

impl Joins {
    /// The line's place at the server's pool, if it has one.
    pub fn seat(&self) -> Option<Arc<Seat>> {
        match self {
            Self::At(..) => None,
            Self::Lent { seat, .. } => Some(seat.clone()),
        }
    }

    fn expected(&self) -> usize {
        match self {
            Self::At(_, expected) | Self::Lent { expected, .. } => *expected,
        }
    }
}

/// The settings of every stage of a session's line.
fn stage_options(options: &SessionOptions, max_rows: u32) -> StageOptions {
    let line = &options.line;
    let kv_type = match options.kv_type {
        KvArg::F32 => KvType::F32,
        KvArg::F16 => KvType::F16,
        KvArg::Q80 => KvType::Q80,
    };
    StageOptions {
        kv_type,
        wire_type: line.wire_type.proto(),
        ctx: options.ctx,
        least_ctx: None,
        max_seqs: options.max_seqs,
        keep: options.keep,
        full_windows: line.full_windows,
        own_drafts: options.speculate.own_drafts(),
        max_rows,
        kernels: line.kernels.clone(),
        balance: line.balance,
        checkpoint: options.checkpoint.0,
        others: options.others.clone(),
        cut: line.hand_cut().cloned(),
    }
}

/// The demand of a line that borrows its workers.
///
/// # Errors
/// The model cannot be cut as the options say.
pub fn demand(model: Arc<Model>, options: &SessionOptions, expected: usize) -> Result<Demand> {
    let n_layers = model.spec.n_layer();
    let at_least = match options.line.hand_cut() {
        Some(cut) => cut_workers(cut, n_layers, expected, true)?,
        None => expected,
    };
    let options = stage_options(options, rows(options, &model));
    Ok(Demand { model, options, at_least, goes_on: false })
}

/// Rows of a session's largest ubatch.
pub fn rows(options: &SessionOptions, model: &Model) -> u32 {
    let rows = options.line.ubatch.unwrap_or(model.default_rows(options.ctx));
    rows.max(options.max_seqs)
}

/// The settings of a session's cluster.
///
/// # Errors
/// An address or a cut is invalid.
pub fn cluster_config(
    options: &SessionOptions,
    security: &Security,
    n_layers: usize,
    max_rows: u32,
) -> Result<ClusterConfig> {
    let line = &options.line;
    let stage = stage_options(options, max_rows);
    let joining = options.joins.is_some();
    let mut source = source(line, joining, options.worker_log())?;
    if let Source::Local(local) = &mut source {
        *local.prefixes = options.local_prefixes;
    }
    let named = match &source {
        Source::Local(local) => local.count,
        Source::Remote(addresses) => addresses.len(),
        Source::JoinOnly => 0,
    };
    let expected = options.joins.as_ref().map_or(0, Joins::expected);
    let (control, how_to_join) = match &options.joins {
        None => (None, None),
        Some(Joins::At(control, _)) => {
            (Some(control.clone()), Some(security.how_to_join(control, &line.data_dir)))
        }
        Some(Joins::Lent { how_to_join, .. }) => (None, Some(how_to_join.clone())),
    };
    let expect = match line.hand_cut() {
        Some(cut) => cut_workers(cut, n_layers, named.max(expected), joining)?,
        None => expected,
    };
    Ok(ClusterConfig {
        source,
        control,
        expect,
        network: security.network.clone(),
        pki: security.pki.clone(),
        how_to_join,
        patience: options.patience,
        replace_after: options.replace_after,
        rebalance: options.rebalance,
        slow_after: options.slow_after,
        stage,
    })
}

/// The number of workers that a line with a cut by hand waits for: all that the cut names.
///
/// # Errors
/// The model cannot be cut like that, or `wanted` is another number of workers than the cut names.
fn cut_workers(cut: &HandCut, n_layers: usize, wanted: usize, joining: bool) -> Result<usize> {
    cut.ranges(n_layers)?;
    if !joining || wanted > cut.n_workers() {
        cut.check_workers(wanted, n_layers)?;
    }
    Ok(cut.n_workers())
}

/// Where a worker is that is named by its address, or by what `brigade nodes` calls it.
pub fn worker_address(worker: &str, line: &LineArgs) -> Result<Address> {
    let known = || {
        let folder = Folder::within(&line.data_dir.find()?);
        // Without books no worker is known by name.
        Pki::address_of(&folder, worker).ok().flatten()
    };
    match (worker.parse::<Address>(), known) {
        (Ok(address), _) => Ok(address),
        (Err(error), known) => match known() {
            Some(address) => Ok(address.parse()?),
            None => Err(error).with_context(|| {
                format!("--worker {worker}: no node of `brigade nodes` is called that")
            }),
        },
    }
}

/// Where workers come from; `joining`: they may also come by themselves.
///
/// # Errors
/// An address or a CPU list is no good.
pub fn source(line: &LineArgs, joining: bool, log_level: &'static str) -> Result<Source> {
    if !line.worker.is_empty() {
        let addresses = line.worker.iter().map(|worker| worker_address(worker, line));
        return Ok(Source::Remote(addresses.collect::<Result<_>>()?));
    }
    if joining && line.workers.is_none() {
        return Ok(Source::JoinOnly);
    }
    Ok(Source::Local(Box::new(local_options(line, log_level)?)))
}

fn local_options(line: &LineArgs, log_level: &'static str) -> Result<LocalOptions> {
    let count = line.local_workers();
    let cpus = line.worker_cpus.clone().unwrap_or_default().0;
    if !cpus.is_empty() && cpus.len() != count {
        bail!("--worker-cpus has {} lists for {count} workers: give one for each", cpus.len());
    }
    for list in &cpus {
        host::check_cpus("--worker-cpus", list)?;
    }
    let threads = match (line.one_number_of_threads()?, cpus.is_empty()) {
        (None, true) => Some((host::cores() / count).max(1)),
        (threads, _) => threads,
    };
    // Several workers that are not told where to run would be pinned to the same CPUs.
    let is_apart = count == 1 || !cpus.is_empty();
    let numa = line.numa.clone().or_else(|| (!is_apart).then(|| Numa::Off.name().to_owned()));
    let free = brigade_worker::machine::memory::available_bytes();
    let share = |free: u64| {
        free.saturating_sub(brigade_worker::machine::memory::RESERVE_BYTES) / count as u64
    };
    let devices = line.device.clone().unwrap_or_default().0;
    let gpu_memory = match (line.memory, &line.kernels) {
        (None, None) => gpu_shares::of_workers(&devices, count),
        _ => Vec::new(),
    };
    Ok(LocalOptions {
        program: program()?,
        count,
        cpus,
        threads,
        numa,
        memory: line.memory,
        host_memory: free.map(share),
        gpu_memory,
        devices,
        experts: experts(line),
        expert_cache: line.expert_cache.clone(),
        no_coopmat: line.no_coopmat,
        fast_math: line.fast_math,
        kernels: line.kernels.clone(),
        prefixes: Box::default(),
        log_format: LogFormat::of_this_process().name(),
        log_level,
    })
}

/// The option about the place of experts, for local workers.
fn experts(line: &LineArgs) -> Option<String> {
    match (&line.experts, line.n_cpu_moe) {
        _ if line.cpu_moe => Some("host".to_owned()),
        (_, Some(n)) => Some(n.to_string()),
        (experts, None) => experts.clone(),
    }
}

fn program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program's own file to start workers from")
}
