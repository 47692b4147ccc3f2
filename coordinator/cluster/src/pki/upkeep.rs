//! Tasks of a running server: it renews its own certificate, and enforces a revocation within a second of the
//! command.

use std::convert::Infallible;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_proto::tls::authority::Validity;
use brigade_proto::tls::files;
use brigade_proto::tls::verify::Authorities;
use brigade_proto::tls::{Credentials, Der, External, Identity, NodeKey, Role, TlsError, unix_now};

use super::authority::PkiError;
use super::enrol::Pki;
use super::roster::{FILE as NODES_FILE, Roster};

const KEY_FILE: &str = "coordinator.key";
/// The time between two looks at the roster.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest time for which certificates that have ended stay on the list of revoked ones.
const READ_EVERY: Duration = Duration::from_secs(3600);

/// Keeps a server's credentials good.
#[derive(Debug)]
pub struct Upkeep {
    pki: Arc<Pki>,
    credentials: Arc<Credentials>,
    /// The authority's key, where the authority is this cluster's own.
    key: Option<NodeKey>,
}

/// The credentials of a coordinator of this authority, called `name`, and what keeps them good. Newcomers are let
/// in, to ask for certificates.
///
/// # Errors
/// The authority's files cannot be read or written.
pub fn credentials(pki: &Arc<Pki>, name: &str) -> Result<Upkeep, PkiError> {
    let folder = pki.folder();
    let lock = folder.lock()?;
    let path = folder.file(KEY_FILE);
    let key = match files::read(&path)? {
        Some(pem) => NodeKey::from_pem(&path.display().to_string(), &pem)?,
        None => {
            let key = NodeKey::generate()?;
            files::write(&path, &key.to_pem())?;
            key
        }
    };
    drop(lock);
    let chain = own_chain(pki, &key, name)?;
    let authorities = Authorities::new("the cluster's authority", &chain[1..])?;
    let identity = Identity::new(chain, &key.to_der())?;
    let credentials = Credentials::new(Arc::new(identity), authorities).with_newcomers();
    let upkeep = Upkeep { pki: pki.clone(), credentials: Arc::new(credentials), key: Some(key) };
    upkeep.read_revoked()?;
    Ok(upkeep)
}

/// The credentials of a coordinator whose certificate a foreign authority issued.
///
/// # Errors
/// A file is no good.
pub fn external(pki: &Arc<Pki>, files: &External) -> Result<Upkeep, PkiError> {
    let credentials = Arc::new(files.load(Role::Coordinator)?);
    let upkeep = Upkeep { pki: pki.clone(), credentials, key: None };
    upkeep.read_revoked()?;
    Ok(upkeep)
}

/// A new certificate of the coordinator's own, and the authority's.
fn own_chain(pki: &Pki, key: &NodeKey, name: &str) -> Result<Vec<Der>, TlsError> {
    let Some(authority) = pki.authority() else { return Ok(Vec::new()) };
    let validity = Validity::from_now(unix_now(), pki.certificates_for());
    let certificate = authority.issue_to(key, Role::Coordinator, name, validity)?;
    Ok(vec![certificate, authority.certificate().clone()])
}

impl Upkeep {
    /// The server's own credentials, which are renewed in place.
    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.credentials
    }

    /// Keeps them good for ever.
    pub async fn keep(self) -> Infallible {
        let renew_every = (self.pki.certificates_for() / 2).max(LOOK_EVERY);
        let (mut seen, mut read, mut renewed) = (None, Instant::now(), Instant::now());
        loop {
            let now = self.roster_state();
            if now != seen || read.elapsed() >= READ_EVERY {
                (seen, read) = (now, Instant::now());
                if let Err(error) = self.read_revoked() {
                    tracing::error!(%error, "the list of revoked nodes cannot be read: later revocations are not in force");
                }
            }
            if renewed.elapsed() >= renew_every {
                renewed = Instant::now();
                self.renew();
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn renew(&self) {
        let Some(key) = &self.key else { return };
        let name = self.credentials.party().name.clone();
        let renewed = own_chain(&self.pki, key, &name);
        if let Err(error) = renewed.and_then(|chain| self.credentials.replace(chain)) {
            tracing::error!(%error, "the coordinator's own certificate is not renewed");
        }
    }

    fn read_revoked(&self) -> Result<(), TlsError> {
        let now = unix_now();
        let roster = Roster::read(self.pki.folder(), now)?;
        self.credentials.revoked().set(roster.revoked_keys(now));
        Ok(())
    }

    /// Metadata of the roster's file; it changes when the file does.
    fn roster_state(&self) -> Option<(u64, i64, i64, u64)> {
        let file = std::fs::metadata(self.pki.folder().file(NODES_FILE)).ok()?;
        Some((file.ino(), file.mtime(), file.mtime_nsec(), file.len()))
    }
}
