//! How a worker belongs to a cluster: it makes a key, has a coordinator give it a certificate for a token, keeps
//! both, and has the certificate renewed long before it ends. The key is its identity: a certificate that was lost or
//! has ended is issued again to the same key, without a token.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::tls::files::{self, Lock};
use brigade_proto::tls::identity::{certificates, to_pem};
use brigade_proto::tls::verify::{key_of, party_of};
use brigade_proto::tls::voucher::vouch;
use brigade_proto::tls::{Credentials, KeyId, NodeKey, TlsError, Token, unix_now};
use tokio::sync::watch;
use tokio::time::sleep;

use super::enrolment::{Asked, BACKOFF, By, Chain, Given, NotGiven, credentials, enrol};
use super::word::Word;

/// A worker's folder within its data folder; further workers of the machine have `node-2`, `node-3` ...
const FOLDER: &str = "node";
/// Most workers that have one data folder.
const MAX_PLACES: usize = 64;
const KEY_FILE: &str = "key.pem";
/// The certificate, then the authority's.
const CERTIFICATE_FILE: &str = "certificate.pem";
const LOCK_FILE: &str = "lock";
/// Where it joined, so that a machine with several places finds the right one.
const COORDINATOR_FILE: &str = "coordinator";
/// How often a node whose coordinator certifies no stages asks for a newer one. It gets a new certificate with each answer.
pub const ASKS_FOR_NEWER_EVERY: Duration = Duration::from_secs(10);

/// Why a worker is no member of its cluster.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// Files, keys or certificates of its own.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Other workers have all identities of the folder.
    #[error(
        "other workers use all identities in {folder}: join one more with --token (brigade token create), or name its \
         folder with --data-dir"
    )]
    InUse {
        /// The data folder.
        folder: PathBuf,
    },
    /// The worker never joined, and has no token.
    #[error("{folder} has no certificate yet: give --join and --token once (brigade token create)")]
    NoToken {
        /// The data folder.
        folder: PathBuf,
    },
    /// A stage's node is gone.
    #[error("the node of this stage is gone, before it gave its word for it")]
    NoNode,
    /// The coordinator will not have it; trying again changes nothing.
    #[error("cannot join {coordinator}: {reason}")]
    Refused {
        /// The coordinator's control address.
        coordinator: Address,
        /// Why, and what to do.
        reason: String,
    },
}

/// A worker's place in a cluster.
#[derive(Debug)]
pub struct Membership {
    folder: PathBuf,
    coordinator: Address,
    key: NodeKey,
    /// Key of the cluster's authority.
    authority: KeyId,
    name: String,
    token: Option<Token>,
    credentials: Arc<Credentials>,
    /// The certificates of these credentials.
    chain: Mutex<Chain>,
    renew_in: Duration,
    /// Whether it is of a node with several stages.
    has_stages: bool,
    /// Whether the coordinator certifies stages, as it said last.
    certifies_stages: watch::Sender<bool>,
    _lock: Lock,
}

/// Where and as what a worker joins.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The worker's data folder.
    pub data_dir: PathBuf,
    /// The coordinator's control address.
    pub coordinator: Address,
    /// The token for the first enrolment.
    pub token: Option<Token>,
    /// The name that it asks for.
    pub name: String,
    /// Whether it is to know if the coordinator certifies stages.
    pub has_stages: bool,
}

impl Membership {
    /// Whether a worker with this data folder has joined a cluster.
    pub fn is_in(data_dir: &Path) -> bool {
        places(data_dir).any(|folder| folder.join(CERTIFICATE_FILE).exists())
    }

    /// Takes the place that the folder remembers, or joins with the token: as often as it takes until a coordinator
    /// answers.
    ///
    /// # Errors
    /// [`MembershipError`].
    pub async fn take(wish: Wish) -> Result<Self, MembershipError> {
        let Place { folder, lock, key, remembered } = free_place(&wish)?;
        let (asks, mut certifies_stages) = (wish.has_stages && remembered.is_some(), true);
        let Remembered { authority, name, credentials, chain, renew_in } = match remembered {
            Some(remembered) => remembered,
            None => {
                let no_token = || MembershipError::NoToken { folder: folder.clone() };
                let token = wish.token.as_ref().ok_or_else(no_token)?;
                let pin = token.authority;
                let asked = Asked { key: &key, name: &wish.name, pin, by: By::Token(token) };
                let given = enrol_until_answered(&wish.coordinator, &asked).await?;
                keep(&folder, &wish.coordinator, &given)?;
                tracing::info!(name = given.name, coordinator = %wish.coordinator, "joined the cluster");
                let credentials = given.credentials(&key)?;
                certifies_stages = given.certifies_stages;
                Remembered {
                    authority: pin,
                    name: given.name,
                    credentials,
                    chain: given.chain,
                    renew_in: given.renew_in,
                }
            }
        };
        let credentials = Arc::new(credentials);
        let (coordinator, token) = (wish.coordinator, wish.token);
        let mut membership = Self {
            folder,
            coordinator,
            key,
            authority,
            name,
            token,
            credentials,
            chain: Mutex::new(chain),
            renew_in,
            has_stages: wish.has_stages,
            certifies_stages: watch::channel(certifies_stages).0,
            _lock: lock,
        };
        if asks {
            membership.renew_in = membership.first_renewal().await;
        }
        Ok(membership)
    }

    /// Renews the certificate as soon as a coordinator answers; returns when to renew it next. One that refuses is asked
    /// again later.
    async fn first_renewal(&self) -> Duration {
        let (mut pause, mut last) = (*BACKOFF.start(), String::new());
        loop {
            match self.renew().await {
                Ok(renew_in) => return renew_in,
                Err(NotGiven { is_final: true, .. }) => return Duration::ZERO,
                Err(NotGiven { reason, .. }) => {
                    if reason != last {
                        let coordinator = &self.coordinator;
                        tracing::warn!(%coordinator, reason, "the stages of this node wait for the coordinator");
                    }
                    last = reason;
                    sleep(pause).await;
                    pause = (pause * 2).min(*BACKOFF.end());
                }
            }
        }
    }

    /// Whether the coordinator certifies stages of nodes, as it says now and later.
    pub fn certifies_stages(&self) -> watch::Receiver<bool> {
        self.certifies_stages.subscribe()
    }

    /// This node's key and its certificates, for the one worker that has the node's place in the cluster.
    pub fn own_word(&self) -> Word {
        let chain = self.chain.lock().unwrap_or_else(PoisonError::into_inner);
        Word::Own { key: self.key.to_pem(), certificates: to_pem(&chain) }
    }

    /// The worker's certificate and key, and the authorities that it trusts.
    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.credentials
    }

    /// The key of the cluster's authority.
    pub fn authority(&self) -> KeyId {
        self.authority
    }

    /// The word of this node that its stage `number` has the key `stage`.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn vouch(&self, number: u8, stage: &KeyId) -> Result<Vec<u8>, TlsError> {
        vouch(&self.key, number, stage, unix_now())
    }

    /// Has the certificate renewed for ever.
    pub async fn keep_renewing(&self) -> std::convert::Infallible {
        let (mut wait, mut pause, mut last) = (self.renew_in, *BACKOFF.start(), String::new());
        loop {
            let waits_for_newer = self.has_stages && !*self.certifies_stages.borrow();
            sleep(if waits_for_newer { wait.min(ASKS_FOR_NEWER_EVERY) } else { wait }).await;
            match self.renew().await {
                Ok(renew_in) => {
                    if !waits_for_newer {
                        tracing::info!(name = self.name, "certificate renewed");
                    }
                    (wait, pause) = (renew_in, *BACKOFF.start());
                    last.clear();
                }
                Err(error) => {
                    let reason = error.to_string();
                    if reason != last {
                        tracing::warn!(reason, "cannot renew the certificate; trying again");
                    }
                    last = reason;
                    wait = pause;
                    pause = (pause * 2).min(*BACKOFF.end());
                }
            }
        }
    }

    async fn renew(&self) -> Result<Duration, NotGiven> {
        let by = self.token.as_ref().map_or(By::Key, By::Token);
        let asked = Asked { key: &self.key, name: &self.name, pin: self.authority, by };
        let given = enrol(&self.coordinator, &asked).await?;
        self.credentials.replace(given.chain.clone()).map_err(NotGiven::of_ours)?;
        keep(&self.folder, &self.coordinator, &given).map_err(NotGiven::of_ours)?;
        *self.chain.lock().unwrap_or_else(PoisonError::into_inner) = given.chain;
        self.certifies_stages.send_if_modified(|before| {
            std::mem::replace(before, given.certifies_stages) != given.certifies_stages
        });
        Ok(given.renew_in)
    }
}

/// A folder that is one worker's for as long as it has the lock.
struct Place {
    folder: PathBuf,
    lock: Lock,
    key: NodeKey,
    remembered: Option<Remembered>,
}

/// The folders that workers of a data folder may have, first one first.
fn places(data_dir: &Path) -> impl Iterator<Item = PathBuf> {
    let names = (2..=MAX_PLACES).map(|n| format!("{FOLDER}-{n}"));
    std::iter::once(FOLDER.to_owned()).chain(names).map(|name| data_dir.join(name))
}

/// The place of a worker: that of one which joined there before and does not run, or with a token a new one.
fn free_place(wish: &Wish) -> Result<Place, MembershipError> {
    let data_dir = &wish.data_dir;
    let here = wish.coordinator.to_string();
    let joined_here = |folder: &PathBuf| {
        let kept = files::read(&folder.join(COORDINATOR_FILE)).ok().flatten();
        kept.is_some_and(|address| address.trim() == here)
    };
    let (mut known, unknown): (Vec<_>, Vec<_>) =
        places(data_dir).partition(|folder| folder.join(CERTIFICATE_FILE).exists());
    known.sort_by_key(|folder| !joined_here(folder));
    let fits = |found: &Remembered| {
        wish.token.as_ref().is_none_or(|token| token.authority == found.authority)
    };
    let mut is_in_use = false;
    for folder in &known {
        match place(folder)? {
            Some(place) if place.remembered.as_ref().is_some_and(fits) => return Ok(place),
            Some(_) => {}
            None => is_in_use = true,
        }
    }
    // The coordinator may have begun a new authority, so certificates of the old one are worth nothing.
    let stale = known.iter().filter(|folder| wish.token.is_some() && joined_here(folder));
    for folder in stale {
        if let Some(place) = place(folder)? {
            return Ok(Place { remembered: None, ..place });
        }
    }
    if wish.token.is_none() {
        return Err(if is_in_use {
            MembershipError::InUse { folder: data_dir.clone() }
        } else {
            MembershipError::NoToken { folder: data_dir.join(FOLDER) }
        });
    }
    for folder in &unknown {
        if let Some(place) = place(folder)? {
            return Ok(place);
        }
    }
    Err(MembershipError::InUse { folder: data_dir.clone() })
}

/// A folder, if no other worker has it.
fn place(folder: &Path) -> Result<Option<Place>, TlsError> {
    files::make_dir(folder)?;
    let Some(lock) = Lock::take(&folder.join(LOCK_FILE), Duration::ZERO)? else { return Ok(None) };
    let key = load_key(&folder.join(KEY_FILE))?;
    let remembered = remembered(folder, &key)?;
    Ok(Some(Place { folder: folder.to_owned(), lock, key, remembered }))
}

/// The certificate that a folder has.
struct Remembered {
    authority: KeyId,
    name: String,
    credentials: Credentials,
    chain: Chain,
    renew_in: Duration,
}

/// The key in a file, or a new one.
fn load_key(path: &Path) -> Result<NodeKey, TlsError> {
    if let Some(pem) = files::read(path)? {
        return NodeKey::from_pem(&path.display().to_string(), &pem);
    }
    let key = NodeKey::generate()?;
    files::write(path, &key.to_pem())?;
    Ok(key)
}

/// The certificate that an earlier process stored for this key.
fn remembered(folder: &Path, key: &NodeKey) -> Result<Option<Remembered>, TlsError> {
    let path = folder.join(CERTIFICATE_FILE);
    let Some(pem) = files::read(&path)? else { return Ok(None) };
    let what = path.display().to_string();
    let chain = certificates(&what, &pem)?;
    let [own, authority] = &chain[..] else { return Ok(None) };
    let (Ok(party), Some(id)) = (party_of(own), key_of(authority)) else { return Ok(None) };
    if party.key != key.id() {
        return Ok(None);
    }
    let credentials = credentials(&what, chain.clone(), key)?;
    // Only the coordinator can say how long it is still good, so it is asked at once.
    let (name, renew_in) = (party.name, Duration::ZERO);
    Ok(Some(Remembered { authority: id, name, credentials, chain, renew_in }))
}

fn keep(folder: &Path, coordinator: &Address, given: &Given) -> Result<(), TlsError> {
    files::write(&folder.join(COORDINATOR_FILE), &coordinator.to_string())?;
    files::write(&folder.join(CERTIFICATE_FILE), &to_pem(&given.chain))
}

async fn enrol_until_answered(
    coordinator: &Address,
    asked: &Asked<'_>,
) -> Result<Given, MembershipError> {
    let (mut pause, mut last) = (*BACKOFF.start(), String::new());
    loop {
        match enrol(coordinator, asked).await {
            Ok(given) => return Ok(given),
            Err(NotGiven { reason, is_final: true }) => {
                return Err(MembershipError::Refused { coordinator: coordinator.clone(), reason });
            }
            Err(NotGiven { reason, .. }) => {
                if reason != last {
                    tracing::warn!(%coordinator, reason, "cannot join the cluster yet; trying again");
                }
                last = reason;
                sleep(pause).await;
                pause = (pause * 2).min(*BACKOFF.end());
            }
        }
    }
}
