//! A cluster with certificates, of real processes: a coordinator that admits workers by token, the workers, and peers
//! with wrong certificates.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use brigade_proto::address::Address;
use brigade_proto::net::{Connection, NetError, Network};
use brigade_proto::tls::authority::Validity;
use brigade_proto::tls::identity::certificates;
use brigade_proto::tls::verify::{Authorities, Expected};
use brigade_proto::tls::{Authority, Credentials, Identity, NodeKey, Role, unix_now};

use crate::process::{Running, brigade, run};
use crate::up_share::{free_address, serve};

/// The beginning of a worker's ready line.
pub const READY: &str = "brigade worker ready on ";
/// How soon a revocation is in force everywhere, beside other tests: on a machine that does nothing else it takes a second.
pub const IN_FORCE_WITHIN: Duration = Duration::from_secs(30);
/// Longer than anything that is valid for a second, since times are in whole seconds.
pub const PAST_A_SECOND: Duration = Duration::from_millis(2100);
/// Time that a test's certificates are good for.
const GOOD_FOR: Duration = Duration::from_secs(3600);

/// The folders and addresses of a cluster. Its folder ends with it.
pub struct Cluster {
    /// Holds a data folder for each process.
    pub dir: PathBuf,
    /// The address where workers join.
    pub control: String,
}

impl Cluster {
    /// A cluster without workers yet, on a free port of this machine.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("brigade-cluster-{}-{n}", std::process::id()));
        // Remains of a test that was killed.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self { dir, control: free_address() }
    }

    /// A process's data folder, as an argument.
    pub fn data(&self, of: &str) -> String {
        self.dir.join(of).to_str().unwrap().to_owned()
    }

    /// The coordinator; it need not have a line yet.
    pub fn serve(&self, more: &[&str]) -> Running {
        let data = self.data("desk");
        let mut args = vec!["--control", &self.control, "--data-dir", &data];
        args.extend(more);
        serve(&args)
    }

    /// The join line of `brigade token create ARGS`.
    pub fn join_line(&self, more: &[&str]) -> String {
        let data = self.data("desk");
        let mut args = vec!["token", "create", "--data-dir", &data];
        args.extend(more);
        said(&run(&args))
    }

    /// A token: the last word of the join line.
    pub fn token(&self, more: &[&str]) -> String {
        self.join_line(more).split_whitespace().last().unwrap().to_owned()
    }

    /// Runs `brigade COMMAND --data-dir ...` of the coordinator's folder; returns its output.
    pub fn admin(&self, command: &[&str]) -> String {
        let data = self.data("desk");
        let mut args = command.to_vec();
        args.extend(["--data-dir", &data]);
        said(&run(&args))
    }

    /// Arguments of a worker with a data folder of its own, which joins; with a token if there is one.
    pub fn worker_args(&self, name: &str, token: Option<&str>, more: &[&str]) -> Vec<String> {
        let data = self.data(name);
        let listen =
            if more.contains(&"--listen") { vec![] } else { vec!["--listen", "127.0.0.1:0"] };
        let mut args = vec!["worker", "--threads", "1", "--name", name, "--data-dir", &data];
        args.extend(["--join", &self.control]);
        args.extend(token.into_iter().flat_map(|token| ["--token", token]));
        args.extend(listen);
        args.extend(more);
        args.into_iter().map(str::to_owned).collect()
    }

    /// A worker that joins with this token.
    pub fn worker(&self, name: &str, token: &str) -> Running {
        let args = self.worker_args(name, Some(token), &[]);
        Running::start(&args.iter().map(String::as_str).collect::<Vec<_>>(), READY)
    }

    /// The error of a worker that may not join, when it ends.
    ///
    /// # Panics
    /// If it does not end by itself, or succeeds.
    pub fn refused(&self, args: &[String]) -> String {
        let mut command = Command::new(brigade());
        refusal(command.args(args))
    }

    /// The identity of a worker that has joined, from its folder.
    pub fn node(&self, name: &str) -> Somebody {
        let read = |file: &str| {
            std::fs::read_to_string(Path::new(&self.data(name)).join("node").join(file)).unwrap()
        };
        let key = NodeKey::from_pem("key.pem", &read("key.pem")).unwrap();
        let chain = certificates("certificate.pem", &read("certificate.pem")).unwrap();
        Somebody::showing(&self.authority(), &key, chain[0].clone())
    }

    /// The authority's key, from its folder, with which any certificate can be made.
    pub fn authority(&self) -> Authority {
        let read = |name: &str| {
            std::fs::read_to_string(Path::new(&self.data("desk")).join("cluster").join(name))
                .unwrap()
        };
        let key = NodeKey::from_pem("ca.key", &read("ca.key")).unwrap();
        Authority::load(key, "ca.pem", &read("ca.pem")).unwrap()
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The standard output of a command, which must succeed.
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The error of a command.
///
/// # Panics
/// If it does not end within a minute, or ends well.
pub fn refusal(command: &mut Command) -> String {
    use std::process::Stdio;
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("{command:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut text).unwrap();
    assert!(!status.success(), "{command:?} ended well: {text}");
    text
}

/// A process with a key, a certificate and the cluster's authority.
pub struct Somebody {
    /// The certificate and key of this peer.
    pub credentials: Arc<Credentials>,
}

impl Somebody {
    /// Whom `by` certifies, and who believes in `of`'s cluster.
    pub fn new(of: &Authority, by: &Authority, role: Role, name: &str, validity: Validity) -> Self {
        let key = NodeKey::generate().unwrap();
        let own = by.issue_to(&key, role, name, validity).unwrap();
        Self::showing(of, &key, own)
    }

    /// A peer that shows this certificate, and trusts the cluster of `of`.
    pub fn showing(of: &Authority, key: &NodeKey, own: brigade_proto::tls::Der) -> Self {
        let believed = Authorities::new("ca", std::slice::from_ref(of.certificate())).unwrap();
        let identity = Identity::new(vec![own, of.certificate().clone()], &key.to_der()).unwrap();
        Self { credentials: Arc::new(Credentials::new(Arc::new(identity), believed)) }
    }

    /// A member of the cluster, for an hour.
    pub fn member(of: &Authority, role: Role, name: &str) -> Self {
        Self::new(of, of, role, name, Validity::from_now(unix_now(), GOOD_FOR))
    }

    /// The id of this somebody as a coordinator.
    pub fn coordinator_id(&self) -> String {
        brigade_proto::tls::party::coordinator_id(&self.credentials.party(), "a-test")
    }

    /// Dials a process of that role.
    ///
    /// # Errors
    /// One of the two does not accept the other's certificate, or there is no server.
    pub async fn dial(&self, address: &Address, role: Role) -> Result<Connection, NetError> {
        let network = Network::with_credentials(self.credentials.clone(), false);
        network.dial(address, Some(Expected { role, key: None })).await
    }
}

/// Waits until `is_so`, and returns how long it took.
///
/// # Panics
/// If it is not within `patience`.
pub fn wait_until(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < patience, "{what}: not within {patience:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    begin.elapsed()
}
