//! Security between a coordinator and its workers: the options of `serve` about its cluster, and the commands that
//! change its members (`token create`, `nodes`, `revoke`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use brigade_cluster::JoinHint;
use brigade_cluster::pki::{self, Folder, MadeToken, Node, Pki, Standing, Upkeep};
use brigade_line::admin::NodeStatus;
use brigade_proto::address::Address;
use brigade_proto::net::Network;
use brigade_proto::tls::{External, unix_now};
use brigade_worker::config::node_name;
use brigade_worker::identity::membership::Membership;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::cli::cluster;
use crate::cli::options::args::LineArgs;
use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::options::units;
use crate::cli::printing::machines;
use crate::cli::printing::output;

/// The default lifetime of a worker's certificate: a day, so that a lost key is soon worthless.
const CERTIFICATES_FOR: &str = "24h";
/// Shortest time a certificate may be good for: renewing takes a connection.
const CERTIFICATES_FOR_AT_LEAST: Duration = Duration::from_secs(2);
/// Time that the certificate of a command is good for: it is not renewed.
const COMMANDS_FOR: Duration = Duration::from_secs(30 * 86_400);
/// Most machines that one token lets in.
const MAX_USES: i64 = 10_000;
/// Longest time a token is good for.
const TOKEN_FOR_AT_MOST: Duration = Duration::from_secs(30 * 86_400);

/// What a machine that has joined is told first, where only a coordinator's machine has an answer.
const JOINED_ITSELF: &str =
    "this machine has joined a cluster, whose tokens and nodes are on its coordinator's machine; ";

/// A cluster's security, as `serve` takes it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Begin a new authority in the data folder: every worker must be joined anew. For one that was lost
    #[arg(long, requires = "control")]
    new_ca: bool,
    /// How long the certificates of workers are valid; they are renewed after half of it
    #[arg(long, value_name = "TIME", default_value = CERTIFICATES_FOR, value_parser = units::duration)]
    cluster_cert_ttl: Duration,
    /// Certify no stages of nodes, as releases before: for tests of upgrades
    #[arg(long, hide = true)]
    certify_no_stages: bool,
    #[command(flatten)]
    files: ClusterFiles,
}

/// Certificates of somebody else's authority.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterFiles {
    /// Certificate (PEM) of an authority outside brigade, for connections within the cluster; its URI names must
    /// include brigade://coordinator/NAME or brigade://worker/NAME
    #[arg(long, value_name = "FILE", requires_all = ["cluster_key", "cluster_ca"])]
    cluster_cert: Option<PathBuf>,
    /// The private key of --cluster-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "cluster_cert")]
    cluster_key: Option<PathBuf>,
    /// The authorities whose certificates are trusted (PEM)
    #[arg(long, value_name = "FILE", requires = "cluster_cert")]
    cluster_ca: Option<PathBuf>,
}

impl ClusterFiles {
    /// The three files, where they are given.
    pub fn external(&self) -> Option<External> {
        let Self { cluster_cert, cluster_key, cluster_ca } = self.clone();
        Some(External { certificate: cluster_cert?, key: cluster_key?, authorities: cluster_ca? })
    }
}

/// How a coordinator speaks with workers, and whom it lets in.
#[derive(Debug, Default)]
pub struct Security {
    /// How connections to workers are made.
    pub network: Network,
    /// Whom it lets in, where it has a cluster.
    pub pki: Option<Arc<Pki>>,
    upkeep: Option<Upkeep>,
}

impl Security {
    /// Without a cluster: plain connections on this machine, or everywhere with `insecure`.
    pub fn plain(insecure: bool) -> Self {
        Self { network: Network::plain(insecure), ..Self::default() }
    }

    /// The security of a server.
    ///
    /// # Errors
    /// The authority is lost, or files are invalid.
    pub async fn of_server(
        args: &ClusterArgs,
        line: &LineArgs,
        control: Option<&Address>,
        again: bool,
    ) -> Result<Self> {
        let (data_dir, insecure) = (&line.data_dir, line.insecure_network);
        let external = args.files.external();
        let is_wanted = external.is_some()
            || args.new_ca
            || match control {
                Some(_) => data_dir.data_dir.is_some() || !insecure,
                None => is_a_cluster(line),
            };
        if !is_wanted {
            return Ok(Self::plain(insecure));
        }
        if args.cluster_cert_ttl < CERTIFICATES_FOR_AT_LEAST {
            bail!("--cluster-cert-ttl is at least {} s", CERTIFICATES_FOR_AT_LEAST.as_secs());
        }
        let folder = data_dir.path()?;
        if args.new_ca && !again {
            begin_anew(&folder, data_dir)?;
        }
        let (pki, upkeep) = match &external {
            Some(files) => {
                let pki = Arc::new(Pki::of_foreign(&folder));
                let upkeep = pki::external(&pki, files)?;
                (pki, upkeep)
            }
            None => {
                let pki = Pki::open(&folder, args.cluster_cert_ttl)?;
                let pki = Arc::new(pki.with_stages(!args.certify_no_stages));
                let upkeep = pki::credentials(&pki, &node_name())?;
                (pki, upkeep)
            }
        };
        // A cluster speaks plain on this machine only: `--insecure-network` is about plain HTTP then.
        let network = Network::with_credentials(upkeep.credentials().clone(), false);
        if let Some(files) = external {
            // It ends with the process.
            tokio::spawn(files.keep_loading(upkeep.credentials().clone()));
        }
        Ok(Self { network, pki: Some(pki), upkeep: Some(upkeep) })
    }

    /// A command's that uses workers which run already: as a coordinator of the cluster in the data folder, if one is
    /// there.
    ///
    /// # Errors
    /// The authority is lost, or files are no good.
    pub fn of_command(line: &LineArgs) -> Result<Self> {
        if !is_a_cluster(line) {
            return Ok(Self::plain(line.insecure_network));
        }
        let pki = Arc::new(Pki::open(&line.data_dir.path()?, COMMANDS_FOR)?);
        let credentials = pki::credentials(&pki, &node_name())?.credentials().clone();
        Ok(Self { network: Network::with_credentials(credentials, false), ..Self::default() })
    }

    /// Says, for `token create`, where workers join.
    ///
    /// # Errors
    /// The data folder cannot be written.
    pub fn joins_at(&self, control: &Address) -> Result<()> {
        let Some(pki) = &self.pki else { return Ok(()) };
        pki.folder().set_control(&reachable(control)).context("cannot remember the control address")
    }

    /// The command that brings a machine to a coordinator with this control address.
    pub fn how_to_join(&self, control: &Address, data_dir: &DataDirArgs) -> JoinHint {
        let at = reachable(control);
        match &self.pki {
            Some(pki) if pki.authority().is_some() => {
                JoinHint::Token(format!("brigade token create{}", data_dir.hint()))
            }
            Some(_) => JoinHint::Join(format!("brigade worker --join {at} --cluster-cert FILE")),
            None => JoinHint::Join(format!("brigade worker --join {at} --insecure-network")),
        }
    }

    /// The same for another line: the certificates are kept good once.
    pub fn again(&self) -> Self {
        Self { network: self.network.clone(), pki: self.pki.clone(), upkeep: None }
    }

    /// Keeps certificates good and revocations in force, for as long as this process runs.
    pub fn keep(&mut self) {
        if let Some(upkeep) = self.upkeep.take() {
            tokio::spawn(upkeep.keep());
        }
    }
}

/// Whether the named workers belong to a cluster. That is so if the given or the default data folder has an
/// authority, and the network is not insecure.
fn is_a_cluster(line: &LineArgs) -> bool {
    let named = line.data_dir.data_dir.is_some();
    let has_authority = |folder: &PathBuf| pki::has_authority(&Folder::within(folder));
    let usual =
        || !line.insecure_network && line.data_dir.find().as_ref().is_some_and(has_authority);
    !line.worker.is_empty() && (named || usual())
}

/// The address that others dial. Where the server listens on all addresses, it is this machine's name.
fn reachable(control: &Address) -> String {
    match control {
        Address::Tcp { host, port, .. }
            if host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_unspecified()) =>
        {
            format!("{}:{port}", node_name())
        }
        other => other.to_string(),
    }
}

fn begin_anew(folder: &Path, data_dir: &DataDirArgs) -> Result<()> {
    let (nodes, aside) = pki::new_authority(folder)?;
    let hint = data_dir.hint();
    tracing::warn!(
        old_files = %aside.display(),
        "a new authority: tokens and certificates of the old one are worth nothing now. Join these anew, each with a \
         token of `brigade token create{hint}`: {nodes}"
    );
    Ok(())
}

/// Let a machine join the cluster
#[derive(Debug, Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Print the one line that a new machine needs; its last word is the token
    Create(CreateArgs),
    /// Show the tokens that can still be used, without their secrets
    List(ListArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data_dir: DataDirArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The token lets a machine in; after that it is worth nothing, unless --uses says more. The machine knows by it that it
talks to the right coordinator. It works while the server runs.")]
struct CreateArgs {
    /// How long the token is valid
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = units::some_time)]
    ttl: Duration,
    /// How many machines can join with the token
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MAX_USES))]
    uses: u32,
    /// Where the machine reaches the coordinator [default: where `serve --control` listened last]
    #[arg(long, value_name = "HOST:PORT")]
    join: Option<Address>,
    #[command(flatten)]
    data_dir: DataDirArgs,
}

/// Runs `token`.
pub fn token(args: TokenArgs) -> Result<()> {
    match args.command {
        TokenCommand::Create(args) => create(&args),
        TokenCommand::List(args) => list(&args),
    }
}

fn list(args: &ListArgs) -> Result<()> {
    let folder = args.data_dir.path()?;
    let tokens = Pki::tokens(&Folder::within(&folder))?;
    if args.json {
        return output::json(&tokens);
    }
    let now = unix_now();
    let row = |token: &MadeToken| {
        let left = units::span(token.expires.saturating_sub(now));
        vec![token.id.clone(), format!("in {left}"), token.uses_left.to_string()]
    };
    let rows: Vec<_> = tokens.iter().map(row).collect();
    output::table(&["token", "ends", "machines left"], &rows)?;
    if tokens.is_empty() {
        let (folder, hint) = (folder.display(), args.data_dir.hint());
        output::remark(format_args!(
            "no token of {folder} can be used now; one more: brigade token create{hint}"
        ));
    }
    Ok(())
}

fn create(args: &CreateArgs) -> Result<()> {
    if args.ttl > TOKEN_FOR_AT_MOST {
        bail!("--ttl is at most {} days", TOKEN_FOR_AT_MOST.as_secs() / 86_400);
    }
    let data_dir = args.data_dir.path()?;
    // A token of an authority that is made here in error would let nobody in.
    if Membership::is_in(&data_dir) && !Pki::is_in(&data_dir) {
        bail!("{JOINED_ITSELF}a cluster of its own needs another --data-dir");
    }
    let join = match &args.join {
        Some(address) => address.to_string(),
        None => Folder::within(&data_dir).control()?.with_context(|| {
            format!(
                "no server has said yet where workers join: start `brigade serve --control HOST:PORT{}`, or say \
                 --join HOST:PORT",
                args.data_dir.hint()
            )
        })?,
    };
    let pki = Pki::open(&data_dir, CERTIFICATES_FOR_AT_LEAST)?;
    let token = pki.create_token(args.ttl, args.uses)?;
    output::line(format_args!("brigade worker --join {join} --token {token}"))
}

/// List the nodes that have joined
#[derive(Debug, Args)]
pub struct NodesArgs {
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data_dir: DataDirArgs,
}

/// Runs `nodes`: those in the books, with what a running coordinator says of them.
pub async fn nodes(args: &NodesArgs) -> Result<()> {
    let folder = args.data_dir.path()?;
    let nodes: Vec<Node> =
        Pki::nodes(&Folder::within(&folder))?.iter().flat_map(Node::listed).collect();
    let (now, running) = (unix_now(), cluster::ask_all(&args.data_dir).await);
    let live = |node: &Node| {
        let all = running.iter().flat_map(|status| &status.nodes);
        // A stage has a key of its own, which lasts for hours.
        let is_it = |seen: &&NodeStatus| {
            if node.stages.is_empty() {
                seen.key.as_deref() == Some(node.key.as_str())
            } else {
                seen.name == node.name
            }
        };
        // A machine that was heard from says more than one that was lost.
        all.filter(is_it).min_by_key(|seen| seen.heard_ms_ago.is_none())
    };
    let is_running = !running.is_empty();
    if args.json {
        let rows = nodes.iter().map(|node| row(node, live(node), is_running, now));
        return output::json(&rows.collect::<Vec<_>>());
    }
    let cells = |node: &Node| {
        let until = match node.expires.checked_sub(now) {
            Some(left) => format!("in {}", units::span(left)),
            None => format!("{} ago", units::span(now - node.expires)),
        };
        let key = node.key.get(..8).unwrap_or(&node.key).to_owned();
        let joined = format!("{} ago", units::span(now.saturating_sub(node.joined)));
        let (name, state) = (node.name.clone(), state(node, live(node), is_running, now));
        vec![name, node.address.clone(), key, state, joined, until]
    };
    let rows: Vec<_> = nodes.iter().map(cells).collect();
    output::table(&["node", "address", "key", "state", "joined", "certificate ends"], &rows)?;
    if nodes.is_empty() && Membership::is_in(&folder) {
        output::remark(format_args!(
            "{JOINED_ITSELF}no machine has joined one of {}",
            folder.display()
        ));
    } else if nodes.is_empty() {
        let (folder, hint) = (folder.display(), args.data_dir.hint());
        output::remark(format_args!(
            "no machine has joined the cluster of {folder}; to let one in: brigade token create{hint}"
        ));
    } else if !is_running {
        output::remark(format_args!(
            "no server runs with this data folder: start one to see which nodes are connected"
        ));
    }
    Ok(())
}

fn standing(node: &Node, now: u64) -> &'static str {
    match node.standing(now) {
        Standing::Good => "good",
        Standing::Away => "away",
        Standing::Revoked => "revoked",
    }
}

/// Where a node stands, as the running coordinator knows it, or else its certificate.
fn state(node: &Node, live: Option<&NodeStatus>, is_running: bool, now: u64) -> String {
    match (node.standing(now), live) {
        (Standing::Revoked, _) => "revoked".to_owned(),
        (_, Some(seen)) => machines::state(seen, now),
        (Standing::Away, None) => "away: its certificate has ended".to_owned(),
        (Standing::Good, None) if is_running => "not connected".to_owned(),
        (Standing::Good, None) => "has joined".to_owned(),
    }
}

fn row(node: &Node, live: Option<&NodeStatus>, is_running: bool, now: u64) -> serde_json::Value {
    json!({
        "name": node.name,
        "key": node.key,
        "standing": standing(node, now),
        "state": state(node, live, is_running, now),
        "heard_ms_ago": live.and_then(|seen| seen.heard_ms_ago),
        "lost_seconds_ago": live.and_then(|seen| seen.lost_seconds_ago),
        "address": node.address,
        "joined": node.joined,
        "expires": node.expires,
        "revoked": node.revoked,
    })
}

/// End a node's connections, and never let it join again
#[derive(Debug, Args)]
#[command(after_help = "\
It is in force within 5 seconds on every machine of a running line. The token that the node joined with is taken back.")]
pub struct RevokeArgs {
    /// Its name, its address, or the beginning of its key (8 digits or more), as `brigade nodes` lists them. With a node go all
    /// of its stages
    node: String,
    #[command(flatten)]
    data_dir: DataDirArgs,
}

/// Runs `revoke`.
pub fn revoke(args: &RevokeArgs) -> Result<()> {
    for node in Pki::revoke(&Folder::within(&args.data_dir.path()?), &args.node)? {
        let key = node.key.get(..8).unwrap_or(&node.key);
        output::line(format_args!("revoked {} (key {key})", node.name))?;
    }
    Ok(())
}
