//! `brigade worker` runs one stage of a line, for whichever coordinator asks.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use brigade_proto::address::Address;
use brigade_proto::tls::files;
use brigade_worker::config::{Config, MESA_CACHE_VARIABLE, Ports, RawConfig, default_cache_dir};
use brigade_worker::identity::membership::Membership;
use brigade_worker::machine::memory;
use brigade_worker::machine::share::{MAX_STAGES, Share};
use brigade_worker::node::Node;
use brigade_worker::node::division::deal;
use brigade_worker::prefixes::store::Sizes;
use clap::Args;
use tokio::sync::oneshot;

use super::config::ConfigFile;
use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::options::security::ClusterFiles;
use crate::cli::options::units;
use crate::cli::running::interrupt::Interrupt;

/// Limit of the line that `brigade token create` prints, when it comes from standard input.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

/// Run one stage of a line for a coordinator.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade worker --listen 127.0.0.1:7070
  brigade worker --join 10.0.0.1:7000 --token TOKEN      as `brigade token create` prints it
  brigade worker --listen 10.0.0.2:7070 --join 10.0.0.1:7000 --data-dir /var/lib/brigade --memory 12G

A worker serves one model at a time and many after one another. When it listens it prints
'brigade worker ready on ADDRESS' on standard output.")]
pub struct WorkerArgs {
    #[command(flatten)]
    config: ConfigFile,
    /// Where to listen: HOST:PORT (port 0: any free one) or unix:PATH [default with --join: port 7070 of the address
    /// by which this machine reaches the coordinator]
    #[arg(long, value_name = "ADDR", required_unless_present = "join")]
    listen: Option<String>,
    /// Join the coordinator at this control address (serve --control)
    #[arg(long, value_name = "ADDR")]
    join: Option<String>,
    /// Join the coordinator's cluster with this token (brigade token create): connections are over TLS from then on.
    /// Needed once; the certificate that it brings renews itself
    #[arg(
        long,
        value_name = "TOKEN",
        requires = "join",
        env = "BRIGADE_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
    /// Read the token from this file, or from standard input (-), or the whole line that `brigade token create`
    /// printed; the file is not needed once the worker has joined
    #[arg(long, value_name = "FILE", requires = "join", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// Name of this worker in the cluster [default: this machine's name]
    #[arg(long, value_name = "NAME", requires = "join")]
    name: Option<String>,
    #[command(flatten)]
    data_dir: DataDirArgs,
    #[command(flatten)]
    cluster: ClusterFiles,
    /// Take credentials from standard input
    #[arg(long, hide = true)]
    credentials_on_stdin: bool,
    /// Address at which the coordinator and other workers reach this worker [default: where it listens]
    #[arg(long, value_name = "HOST:PORT", requires = "join")]
    advertise: Option<String>,
    /// Memory a stage may take, e.g. 12G [default: what the machine or its cgroup leaves, or the GPU's memory]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// As --memory, where stages lie in the host's memory
    #[arg(long, value_name = "SIZE", hide = true)]
    host_memory: Option<String>,
    /// As --memory, where stages lie in a GPU's own memory
    #[arg(long, value_name = "SIZE", hide = true)]
    gpu_memory: Option<String>,
    /// Compute threads [default: one a core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Device that computes: auto, cpu, or a GPU by its name in `brigade devices`, such as vulkan:0. With +cpu behind
    /// it (vulkan:0+cpu), routed experts that do not fit its memory lie in the host's memory [default: auto, the first
    /// GPU that there is, else the CPU]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Where the routed experts of a mixture lie beside a GPU: device (its memory), host (the host's memory), auto (the
    /// host's memory for those that do not fit the GPU's), or a number N (the host's memory for those of the first N
    /// layers). Results do not depend on it [default: auto with --device auto or vulkan:0+cpu, else device]
    #[arg(long, value_name = "WHERE")]
    experts: Option<String>,
    /// Keep all routed experts in the host's memory, beside a GPU that computes the rest: the same as --experts host
    #[arg(long, conflicts_with = "experts")]
    cpu_moe: bool,
    /// Keep the routed experts of the first N layers in the host's memory: the same as --experts N
    #[arg(long, value_name = "N", conflicts_with_all = ["experts", "cpu_moe"])]
    n_cpu_moe: Option<u32>,
    /// Memory of the GPU for copies of the most used of the experts in the host's memory, e.g. 4G; auto: what the stage
    /// leaves of it. Results do not depend on it [default: none]
    #[arg(long, value_name = "SIZE")]
    expert_cache: Option<String>,
    /// Do not use the GPU's matrix units, for drivers that fail with them: prompts then take longer, results are the
    /// same
    #[arg(long)]
    no_coopmat: bool,
    /// Compute prompts faster: on the GPU's f16 matrix units, or on a CPU with AVX-512 BF16 where weights are F16 or BF16.
    /// Answers may then differ from those without this option, and may change with the device, its driver, and the
    /// requests that run at the same time: the same bytes are not promised
    #[arg(long, conflicts_with = "no_coopmat")]
    fast_math: bool,
    /// After so many batches of commands the GPU counts as lost, once
    #[arg(long, value_name = "N", hide = true)]
    gpu_lost_after: Option<u64>,
    /// Kernel table, e.g. reference, avx2, avxvnni, avx512 [default: the best this CPU runs]
    #[arg(long, value_name = "NAME")]
    kernels: Option<String>,
    /// CPUs that threads are pinned to, e.g. 0-3,8 [default: not pinned]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Threads and weights on a machine with several NUMA nodes, parts with memory of their own. auto: threads are pinned,
    /// node after node, and weights lie where the threads are that read them. off: the system places them [default: auto,
    /// for --cpus or a thread for each core]
    #[arg(long, value_name = "WHERE", value_parser = ["auto", "off"])]
    numa: Option<String>,
    /// Speeds for the plan, GB/s of memory and GOP/s of products, e.g. 40,900: the cut is then the same at every
    /// start, whatever else the machine does [default: measured at start, and logged]
    #[arg(long, value_name = "GBPS,GOPS", env = "BRIGADE_SPEED")]
    speed: Option<String>,
    /// Where pushed weights are kept [default: ~/.cache/brigade]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Bound of the cache's size, for all workers that share it, e.g. 64G
    #[arg(long, value_name = "SIZE")]
    cache_limit: Option<String>,
    /// Memory for records of kept prefixes, apart from the stage's, e.g. 4G: a prompt's beginning is loaded from them,
    /// and not computed again, when its state was evicted or the line was cut anew; 0: none. It is part of --memory
    #[arg(long, value_name = "SIZE", value_parser = units::size_or_none, default_value = "0")]
    prefix_ram: u64,
    /// Disk space for such records, in the cache's folder, e.g. 100G: there they also outlive the process; 0: none
    #[arg(long, value_name = "SIZE", value_parser = units::size_or_none, default_value = "0")]
    prefix_disk: u64,
    /// Bytes a second to write to records of kept prefixes and to checkpoints on disk at most, both together: less for a
    /// disk that others need [default: 256M]
    #[arg(long, value_name = "SIZE")]
    record_rate: Option<String>,
    /// Read no model file that the coordinator names, even if it is here: take pushed weights only
    #[arg(long)]
    no_model_files: bool,
    /// Allow plain, unauthenticated connections beyond loopback
    #[arg(long)]
    insecure_network: bool,
    /// Stages to run on this machine, each in a process of its own, for as many models. They share --memory,
    /// --prefix-ram, --prefix-disk and --cache-limit as they need it, and compute in turn. Their names are NAME.1, NAME.2
    /// and so on. They have the port of --listen together: HOST:PORT/2 is the second
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = stages)]
    stages: usize,
    /// With --stages: a port for each stage, the first and the last of them, as in 7070-7073. --listen names the host and
    /// the first port; --advertise the first port, too [default: one port for all]
    #[arg(long, value_name = "A-B", requires = "listen")]
    stage_ports: Option<Ports>,
    /// Which stage of a node this process is: 2/3
    #[arg(long, hide = true)]
    stage: Option<Share>,
    /// The node of this stage vouches for it
    #[arg(long, hide = true, requires = "stage")]
    vouched: bool,
    /// Where the node of this stage listens
    #[arg(long, hide = true, requires = "stage")]
    stage_at: Option<Address>,
    /// Leave when standard input ends
    #[arg(long, hide = true)]
    exit_with_stdin: bool,
}

/// The given token, from an option or a file: the last word of the text. A named file must have a token until the
/// worker has joined. Without one the worker would connect plain, or not at all.
fn token(args: &WorkerArgs) -> Result<Option<String>> {
    let text = match &args.token_file {
        None => args.token.clone(),
        Some(path) if path.as_os_str() == "-" => {
            let mut text = String::new();
            let mut input = std::io::stdin().lock().take(MAX_TOKEN_BYTES);
            input.read_to_string(&mut text).context("--token-file -")?;
            Some(text)
        }
        Some(path) => files::read(path).context("--token-file")?,
    };
    let token = text.and_then(|text| Some(text.split_whitespace().last()?.to_owned()));
    match &args.token_file {
        Some(path) if token.is_none() && joined_dir(args).is_none() => bail!(
            "--token-file {}: there is no token in it, and this worker has not joined yet: put the line there that \
             `brigade token create` prints",
            path.display()
        ),
        _ => Ok(token),
    }
}

/// The folder of those who name none, where a worker has joined a cluster from it before.
fn joined_dir(args: &WorkerArgs) -> Option<PathBuf> {
    args.join.as_ref()?;
    args.data_dir.find().filter(|folder| Membership::is_in(folder))
}

/// Whether this process is a node that starts others for its stages.
fn is_node(args: &WorkerArgs) -> bool {
    args.stages > 1 && args.stage.is_none()
}

/// Mesa's drivers keep compiled shaders in a folder of their user, to which a worker may not write. So this process
/// executes itself again, once, with the variable that names its own folder: libraries read their environment at the
/// start.
fn keep_what_drivers_compile(cache: Option<&Path>) {
    let (Some(cache), Ok(program)) = (cache, std::env::current_exe()) else { return };
    if std::env::var_os(MESA_CACHE_VARIABLE).is_some() {
        return;
    }
    let mut args = std::env::args_os();
    let mut command = std::process::Command::new(program);
    command.arg0(args.next().unwrap_or_default()).args(args).env(MESA_CACHE_VARIABLE, cache);
    // It returns only if it fails: then they compile at each start.
    tracing::warn!(error = %command.exec(), "this process cannot be started again with its own shader cache: GPU drivers compile their kernels at every start");
}

/// Confines the process to what a worker does to files, before it has threads.
pub fn confine(args: &WorkerArgs) {
    let listen = args.listen.as_deref().and_then(|text| text.strip_prefix("unix:"));
    let socket = listen.and_then(|path| Path::new(path).parent()).map(|folder| {
        // A socket without a folder is beside the caller.
        if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_owned() }
    });
    let env = |name: &str| std::env::var(name).ok();
    let cache = args.cache_dir.clone().or_else(|| default_cache_dir(&env).ok());
    if args.device.as_deref() != Some("cpu") {
        keep_what_drivers_compile(cache.as_deref());
    }
    let joins = args.token.is_some() || args.token_file.is_some();
    let data = if joins {
        args.data_dir.find()
    } else {
        args.data_dir.data_dir.clone().or_else(|| joined_dir(args))
    };
    // A stage's key is in its memory alone.
    let data = data.filter(|_| args.stage.is_none());
    let own = is_node(args).then(|| Path::new("/proc/self/exe"));
    let writable: Vec<PathBuf> = [cache, data, socket].into_iter().flatten().collect();
    #[cfg(target_os = "linux")]
    match brigade_worker::machine::sandbox::enter(&writable, own) {
        Ok(how) => tracing::info!(?how, ?writable, "confined: it reads files, and writes to these"),
        Err(error) => tracing::warn!(%error, "not confined: the kernel takes no rules for files"),
    }
    #[cfg(not(target_os = "linux"))]
    tracing::debug!(?writable, ?own, "not confined: this system has no rules for it");
}

/// Checks what is said of a node's stages together.
fn check_stages(args: &WorkerArgs) -> Result<()> {
    if args.stages == 1 && args.stage_ports.is_some() {
        bail!("--stage-ports: there is one stage: give --stages, or --listen alone");
    }
    Ok(())
}

/// Runs the command.
pub async fn execute(args: WorkerArgs) -> Result<()> {
    let mut interrupt = Interrupt::listen()?;
    let (is_node, share, stages) = (is_node(&args), args.stage, args.stages);
    check_stages(&args)?;
    // A stage needs none: its node has joined.
    let token = if args.stage.is_none() { token(&args)? } else { None };
    let joined_dir = joined_dir(&args);
    let raw = RawConfig {
        listen: args.listen.unwrap_or_default(),
        token,
        name: args.name,
        data_dir: args.data_dir.data_dir,
        joined_dir,
        external: args.cluster.external(),
        credentials_on_stdin: args.credentials_on_stdin,
        join: args.join,
        advertise: args.advertise,
        stage_ports: args.stage_ports,
        memory: args.memory,
        host_memory: args.host_memory,
        gpu_memory: args.gpu_memory,
        threads: args.threads,
        device: args.device,
        experts: args.experts,
        cpu_moe: args.cpu_moe,
        n_cpu_moe: args.n_cpu_moe,
        expert_cache: args.expert_cache,
        no_coopmat: args.no_coopmat,
        fast_math: args.fast_math,
        gpu_lost_after: args.gpu_lost_after,
        kernels: args.kernels,
        cpus: args.cpus,
        numa: args.numa,
        speed: args.speed,
        cache_dir: args.cache_dir,
        cache_limit: args.cache_limit,
        prefixes: Sizes { ram: args.prefix_ram, disk: args.prefix_disk },
        record_rate: args.record_rate,
        no_model_files: args.no_model_files,
        insecure_network: args.insecure_network,
        is_vouched: args.vouched,
        exit_with_stdin: args.exit_with_stdin,
    };
    let config = Config::validate(raw, &|name| std::env::var(name).ok())?;
    brigade_worker::host::check_cpus("--cpus", &config.cpus)?;
    let config = match share {
        Some(share) => deal(share, config, args.stage_at.as_ref())?,
        None => config,
    };
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
    if is_node {
        node(&config, stages)?.run(&config, leave, wished).await?
    } else {
        brigade_worker::run(config, leave, wished).await?
    }
    Ok(())
}

/// A node with so many stages, of this process's arguments.
fn node(config: &Config, stages: usize) -> Result<Node> {
    let of_all = config.memory_bytes.or(config.host_memory_bytes);
    // Errors are reported once, before anything is started.
    deal(Share::new(stages, stages), config.clone(), None)?;
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if of_all.is_none() {
        // Divided now: a stage that is started again would find only the memory that the others leave.
        let free = memory::available_bytes().context(
            "cannot tell how much memory is free on this system: give --memory, for all stages together",
        )?;
        let all = free.saturating_sub(memory::RESERVE_BYTES);
        arguments.extend(["--host-memory".into(), all.to_string().into()]);
    }
    Ok(Node::new(arguments, stages)?)
}

fn stages(text: &str) -> Result<usize, String> {
    let stages = text.parse().ok().filter(|stages| (1..=MAX_STAGES).contains(stages));
    stages.ok_or_else(|| format!("1 to {MAX_STAGES}"))
}
