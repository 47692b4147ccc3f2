//! Everything in front of `serve`'s HTTP listeners: certificates, keys, the admin listener, the audit log.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use brigade_http::{
    Access, Audit, AuditOptions, ConnectionLimits, DEFAULT_AUDIT_BYTES, Door, Fleet, Hosts,
    Origins, Tls, TlsFiles, UnderWay, admin_router, allowed_host, router, serve,
};
use brigade_line::clock;
use brigade_line::keys::{KeyFile, KeyGroup, KeyGroups, KeyRing};
use brigade_plan::parse_bytes;
use brigade_proto::address::{Address, AddressError, FIRST_STAGE};
use brigade_proto::net::listen_tcp;
use brigade_worker::config::node_name;
use clap::Args;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cli::options::args::LineArgs;
use crate::cli::options::data_dir::DataDirArgs;

/// Where the admin listener is unless the operator says otherwise. Where that port is taken, by another server on
/// this machine, any other is used, and said.
const ADMIN_LISTEN: &str = "127.0.0.1:7080";

/// Requests to the admin listener at once: a scraper and a few people.
const ADMIN_REQUESTS: usize = 16;

/// Smallest size at which an audit log is rotated.
const MIN_AUDIT_BYTES: u64 = 1 << 20;

/// What stands before the HTTP listeners.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Access")]
pub struct FrontArgs {
    /// Where to serve HTTP
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: Address,
    /// Serve HTTPS with this certificate: PEM, its chain after it; read again on SIGHUP and when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert: PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve every client that reaches the port, without API keys (brigade key)
    #[arg(long)]
    no_auth: bool,
    /// API keys that share computed beginnings of prompts, by the names of brigade key create: NAME,NAME; repeatable.
    /// All other keys share with no key. In the file: [[share]] keys = ["NAME", "NAME"]
    #[arg(long, value_name = "KEYS", conflicts_with = "no_auth")]
    share_prefix: Vec<KeyGroup>,
    /// Where to serve /metrics, /admin and a /health with reasons [default: 127.0.0.1:7080, or any port where that
    /// is taken]
    #[arg(long, value_name = "ADDR")]
    admin_listen: Option<Address>,
    /// Another host name by which clients may address this server, such as a reverse proxy's; repeatable,
    /// *.example.com: all names below it, *: any. The machine's name, the certificate's, localhost and the addresses on
    /// which it listens are always allowed
    #[arg(long, value_name = "NAME", value_parser = allowed_host)]
    allow_host: Vec<String>,
    /// Append to this file who asked for what, one JSON object a line; never prompts or keys
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Write the requests' bodies to the audit log too, prompts and all
    #[arg(long, requires = "audit_log")]
    audit_content: bool,
    /// Size at which the audit log is rotated; nine older files are kept
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value_t = DEFAULT_AUDIT_BYTES,
          hide_default_value = true)]
    audit_size: u64,
    /// Connections from one address at once [default: half of all]
    #[arg(long, value_name = "N")]
    max_connections_per_address: Option<usize>,
}

impl FrontArgs {
    /// Where clients are served.
    pub fn listen(&self) -> &Address {
        &self.listen
    }

    /// Whether HTTPS is served: then SIGHUP is about certificates.
    pub fn has_tls(&self) -> bool {
        self.tls_cert.is_some()
    }
}

/// The listeners and what they need, before anything is served.
#[derive(Debug)]
pub struct Front {
    public: Listening,
    admin: Listening,
    /// The keys that the admin listener accepts.
    keys: Option<KeyRing>,
    /// Access to the public listener.
    pub access: Access,
    /// Where it is written down who asked.
    pub audit: Option<Audit>,
    of_address: Option<usize>,
    allow_host: Vec<String>,
    /// Ends the tasks that watch keys and certificates.
    stop: CancellationToken,
}

#[derive(Debug)]
struct Listening {
    listener: TcpListener,
    /// The host as the operator has written it, where it is a name.
    host: Option<String>,
    address: SocketAddr,
    tls: Option<Tls>,
}

impl Listening {
    fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.address)
    }

    fn is_local(&self) -> bool {
        is_local(&self.address)
    }

    /// The host names by which the server may be asked.
    fn hosts(&self, allowed: &[String]) -> Hosts {
        let more: Vec<String> = self.host.iter().chain(allowed).cloned().collect();
        Hosts::new(self.address, &node_name(), self.tls.clone(), &more)
    }
}

fn is_local(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

impl Front {
    /// Opens the listeners and reads keys and certificates. With the line's `--insecure-network` plain HTTP may leave
    /// this machine.
    ///
    /// # Errors
    /// An address, a certificate or the keys cannot be used, or the listener would be open to the network.
    pub async fn open(args: &FrontArgs, line: &LineArgs) -> Result<Self> {
        let data_dir = &line.data_dir;
        let stop = CancellationToken::new();
        let tls = open_tls(args, &stop)?;
        let plain = line.insecure_network || tls.is_some();
        let public = listen("--listen", &args.listen, plain, tls.clone()).await?;
        let admin = admin_listener(args, plain, tls).await?;
        let ring = open_keys(data_dir, &stop)?;
        check_keys(args, data_dir, &public, &admin, ring.as_ref())?;
        let keys = ring.clone();
        let groups = key_groups(args, ring.as_ref())?;
        let access = match ring {
            Some(ring) if !args.no_auth => Access::Keys(ring, groups),
            _ => Access::Open,
        };
        let audit = args.audit_log.as_ref().map(|path| open_audit(path, args)).transpose()?;
        let of_address = args.max_connections_per_address;
        let allow_host = args.allow_host.clone();
        Ok(Self { public, admin, keys, access, audit, of_address, allow_host, stop })
    }

    /// The keys that requests need, if any.
    pub fn keys(&self) -> Option<KeyRing> {
        self.keys.clone()
    }

    /// The address for clients.
    pub fn url(&self) -> String {
        self.public.url()
    }

    /// The state that all models behind it share. `requests`: how many may run and wait.
    pub fn door(
        &self,
        requests: usize,
        metrics: PrometheusHandle,
        draining: CancellationToken,
    ) -> Arc<Door> {
        Arc::new(Door {
            access: self.access.clone(),
            audit: self.audit.clone(),
            under_way: UnderWay::of_address(self.limits(requests).of_address),
            ..Door::of_this_process(metrics, draining)
        })
    }

    fn limits(&self, requests: usize) -> ConnectionLimits {
        let limits = ConnectionLimits::of_server(requests);
        let of_address = self.of_address.unwrap_or(limits.of_address).max(1);
        ConnectionLimits { of_address, ..limits }
    }

    /// The address for operators.
    pub fn admin_url(&self) -> String {
        self.admin.url()
    }

    /// Serves both listeners: the public one until `draining`, the admin one until the process ends. Web pages of `origins`
    /// may ask. `requests` may run and wait.
    pub fn serve(
        self,
        fleet: Fleet,
        origins: Origins,
        requests: usize,
        draining: CancellationToken,
    ) -> Serving {
        let limits = self.limits(requests);
        let needs_key = !self.admin.is_local();
        let hosts = self.admin.hosts(&self.allow_host);
        let Listening { listener, tls, .. } = self.admin;
        let admin = admin_router(fleet.clone(), self.keys, needs_key, hosts);
        let admin_limits = ConnectionLimits::of_server(ADMIN_REQUESTS);
        tokio::spawn(serve(listener, admin, tls, self.stop.clone(), admin_limits));
        let router = router(fleet, self.public.hosts(&self.allow_host), origins);
        let Listening { listener, tls, .. } = self.public;
        let public = tokio::spawn(serve(listener, router, tls, draining, limits));
        Serving { public, stop: self.stop, audit: self.audit }
    }
}

/// Listeners that are served.
#[derive(Debug)]
pub struct Serving {
    /// Ends when all answers of the public one have ended.
    pub public: JoinHandle<()>,
    stop: CancellationToken,
    audit: Option<Audit>,
}

impl Serving {
    /// Ends the remaining tasks, and the audit log last.
    pub fn end(self) {
        self.stop.cancel();
        if let Some(audit) = self.audit {
            audit.flush();
        }
    }
}

fn open_tls(args: &FrontArgs, stop: &CancellationToken) -> Result<Option<Tls>> {
    let (Some(cert), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
    let files = TlsFiles { cert: cert.clone(), key: key.clone() };
    let (tls, renewer) = Tls::open(files)?;
    renewer.run(stop.clone()).context("cannot listen for SIGHUP")?;
    Ok(Some(tls))
}

/// The keys of the data folder; `None` where there is no such folder, so that no key can exist.
fn open_keys(data_dir: &DataDirArgs, stop: &CancellationToken) -> Result<Option<KeyRing>> {
    let Some(folder) = data_dir.find() else { return Ok(None) };
    let (ring, follower) = KeyRing::open(KeyFile::in_folder(&folder))?;
    tokio::spawn(follower.run(stop.clone()));
    Ok(Some(ring))
}

/// The groups of keys that share kept prompts.
fn key_groups(args: &FrontArgs, ring: Option<&KeyRing>) -> Result<KeyGroups> {
    let keys = ring.map(KeyRing::now).unwrap_or_default();
    KeyGroups::new(&args.share_prefix, &keys).context("--share-prefix")
}

/// Refuses a listener beyond this machine without keys, unless the operator allows it.
fn check_keys(
    args: &FrontArgs,
    data_dir: &DataDirArgs,
    public: &Listening,
    admin: &Listening,
    ring: Option<&KeyRing>,
) -> Result<()> {
    let (keys, now) = (ring.map(KeyRing::now), clock::unix_now());
    let usable = keys.as_ref().map_or(0, |keys| keys.n_usable(now));
    if !public.is_local() && usable == 0 && !args.no_auth {
        bail!(
            "--listen {}: every client that reaches it could use it, because there is no API key: make one with `brigade \
             key create NAME`{}, or pass --no-auth",
            args.listen,
            data_dir.hint()
        );
    }
    if !public.is_local() && args.no_auth {
        tracing::warn!(address = %public.address, "--no-auth: every client that reaches this address can use the server without a key");
    }
    if !admin.is_local() && !keys.is_some_and(|keys| keys.has_admin(now)) {
        bail!(
            "--admin-listen {}: beyond this machine it needs a key of its own: make one with `brigade key create NAME \
             --admin`{}",
            admin.address,
            data_dir.hint()
        );
    }
    Ok(())
}

fn open_audit(path: &Path, args: &FrontArgs) -> Result<Audit> {
    let max_bytes = args.audit_size;
    if max_bytes < MIN_AUDIT_BYTES {
        bail!("--audit-size is {max_bytes}: at least {MIN_AUDIT_BYTES} bytes");
    }
    let options = AuditOptions { path: path.to_owned(), max_bytes, content: args.audit_content };
    Audit::open(options).with_context(|| format!("--audit-log {}", path.display()))
}

async fn admin_listener(args: &FrontArgs, plain: bool, tls: Option<Tls>) -> Result<Listening> {
    if let Some(address) = &args.admin_listen {
        let listening = listen("--admin-listen", address, plain, tls).await?;
        // On this machine nothing has to be hidden from the network.
        let tls = listening.tls.clone().filter(|_| !listening.is_local());
        return Ok(Listening { tls, ..listening });
    }
    let listener = match TcpListener::bind(ADMIN_LISTEN).await {
        Ok(listener) => listener,
        Err(error) => {
            tracing::info!(%error, "{ADMIN_LISTEN} is taken: the admin listener gets another port");
            let any = TcpListener::bind("127.0.0.1:0").await;
            any.context("no port is free for the admin listener: name one with --admin-listen")?
        }
    };
    let address = listener.local_addr()?;
    Ok(Listening { listener, host: None, address, tls: None })
}

/// `plain`: it may be beyond this machine.
async fn listen(
    option: &str,
    address: &Address,
    plain: bool,
    tls: Option<Tls>,
) -> Result<Listening> {
    let Address::Tcp { host, port, stage: FIRST_STAGE } = address else {
        bail!("{option} {address}: HTTP is served on TCP only: give HOST:PORT");
    };
    let unresolved = |source| AddressError::Unresolved { address: address.to_string(), source };
    let found = tokio::net::lookup_host((host.as_str(), *port)).await.map_err(unresolved);
    let sockets: Vec<SocketAddr> = found.context(option.to_string())?.collect();
    if !plain && sockets.iter().any(|socket| !is_local(socket)) {
        bail!(
            "{option} {address} is not on this machine, and plain HTTP can be read on the way: give a certificate \
             with --tls-cert and --tls-key, or pass --insecure-network"
        );
    }
    let listener = listen_tcp(&sockets).with_context(|| format!("cannot listen on {address}"))?;
    let host = Some(host.clone());
    let address = listener.local_addr()?;
    if tls.is_none() && !is_local(&address) {
        tracing::warn!(%address, "plain HTTP: keys, prompts and answers can be read on the way");
    }
    Ok(Listening { listener, host, address, tls })
}
