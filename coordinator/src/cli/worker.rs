//! `brigade worker`: one stage of a line, for whichever coordinator asks.

use std::path::PathBuf;

use anyhow::Result;
use brigade_worker::config::{Config, RawConfig};
use clap::Args;
use tokio::sync::oneshot;

use super::session::Interrupt;

/// Run one stage of a line for a coordinator.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade worker --listen 127.0.0.1:7070
  brigade worker --listen 10.0.0.2:7070 --memory 12G --insecure-network
  brigade worker --listen 10.0.0.2:7070 --join 10.0.0.1:7000 --insecure-network

A worker serves one model at a time and many after one another. When it listens it prints
'brigade worker ready on ADDRESS' on standard output.")]
pub struct WorkerArgs {
    /// Where to listen: HOST:PORT (port 0: any free one) or unix:PATH
    #[arg(long)]
    listen: String,
    /// Tell the coordinator on this control address where this worker is
    #[arg(long, value_name = "ADDR")]
    join: Option<String>,
    /// The address to tell it [default: where it listens]
    #[arg(long, value_name = "HOST:PORT", requires = "join")]
    advertise: Option<String>,
    /// Memory a stage may take, e.g. 12G [default: what the machine or its cgroup leaves]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Compute threads [default: one a core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Kernel table, e.g. reference, avx2, avx512 [default: the best this CPU runs]
    #[arg(long, value_name = "NAME")]
    kernels: Option<String>,
    /// CPUs that threads are pinned to, e.g. 0-3,8 [default: not pinned]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Where pushed weights are kept [default: ~/.cache/brigade]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Bound of the cache's size, e.g. 64G
    #[arg(long, value_name = "SIZE")]
    cache_limit: Option<String>,
    /// Read no model file that the coordinator names, even if it is here: take pushed weights only
    #[arg(long)]
    no_model_files: bool,
    /// Allow plain, unauthenticated connections beyond loopback
    #[arg(long)]
    insecure_network: bool,
    /// Leave when standard input ends
    #[arg(long, hide = true)]
    exit_with_stdin: bool,
}

/// Runs the command.
pub async fn execute(args: WorkerArgs) -> Result<()> {
    let mut interrupt = Interrupt::listen()?;
    let raw = RawConfig {
        listen: args.listen,
        join: args.join,
        advertise: args.advertise,
        memory: args.memory,
        threads: args.threads,
        kernels: args.kernels,
        cpus: args.cpus,
        cache_dir: args.cache_dir,
        cache_limit: args.cache_limit,
        no_model_files: args.no_model_files,
        insecure_network: args.insecure_network,
        exit_with_stdin: args.exit_with_stdin,
    };
    let config = Config::validate(raw, &|name| std::env::var(name).ok())?;
    brigade_worker::host::check_cpus("--cpus", &config.cpus)?;
    let (wish, wished) = oneshot::channel();
    let leave = async move {
        // SIGTERM asks to leave in order; the next signal is obeyed at once.
        if interrupt.is_terminate().await && wish.send(()).is_ok() {
            interrupt.received().await;
        }
    };
    let wished = async {
        if wished.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    brigade_worker::run(config, leave, wished).await?;
    Ok(())
}
