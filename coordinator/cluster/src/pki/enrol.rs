//! Enrolment: a node gets its first certificate with a token, and later ones by its key alone.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use brigade_proto::tls::authority::Validity;
use brigade_proto::tls::party::check_name;
use brigade_proto::tls::revoked::MAX_REVOKED;
use brigade_proto::tls::voucher::{self, Vouched};
use brigade_proto::tls::{
    Authority, Bundle, Der, KeyId, Party, PublicKey, Role, TlsError, Token, unix_now,
};
use thiserror::Error;

use super::authority::{self, PkiError};
use super::folder::Folder;
use super::roster::{Node, Roster, stage_number};
use super::tokens::{self, BadToken, MadeToken};

/// The longest time for which the books take a certificate of a foreign authority to be good: only that authority
/// knows when it ends.
const FOREIGN_FOR_S: u64 = 10 * 365 * 86_400;

/// How long a stage's certificate is good at most. Its key is as old as its process, and its node vouches for it anew each time.
const STAGE_CERTIFICATES_FOR: Duration = Duration::from_secs(4 * 3600);

/// Characters of an address that the books keep: longer ones are no host's.
const MAX_ADDRESS_CHARS: usize = 256;

/// The cluster's authority and its books.
#[derive(Debug)]
pub struct Pki {
    folder: Folder,
    /// `None` where certificates come from a foreign authority.
    authority: Option<Authority>,
    certificates_for: Duration,
    /// Whether it certifies stages on their nodes' word.
    certifies_stages: bool,
    /// The address that each node said last that it can be dialled at, and each stage of one: it says so every few seconds.
    seen: Mutex<HashMap<Seen, String>>,
}

/// Who said where it is: the key of a node, and the number of its stage.
type Seen = (KeyId, Option<u8>);

/// A certificate that was given.
#[derive(Debug)]
pub struct Issued {
    /// The node's certificate, DER encoded.
    pub certificate: Der,
    /// The authority's certificate, DER encoded.
    pub authority: Der,
    /// The node's name in the cluster.
    pub name: String,
    /// When it should be renewed.
    pub renew_in: Duration,
}

/// Why a node was given no certificate.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The token is not valid.
    #[error(transparent)]
    Token(#[from] BadToken),
    /// The node came without a token, and its key is not known.
    #[error("this node has not joined the cluster: join it with a token (brigade token create)")]
    Stranger,
    /// The node was revoked.
    #[error(
        "this node was revoked: remove its data folder and join it with a new token if it is to come back"
    )]
    Revoked,
    /// The certificate of a stage's node has ended.
    #[error(
        "the certificate of this stage's node has ended: the stage gets one when the node has renewed its own"
    )]
    NodeAway,
    /// Certificates come from a foreign authority.
    #[error(
        "this cluster's certificates come from an authority outside brigade: give the worker --cluster-cert"
    )]
    Foreign,
    /// The wished name is invalid, or this coordinator's files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Pki {
    /// Whether a data folder has an authority of its own.
    pub fn is_in(data_dir: &Path) -> bool {
        Folder::within(data_dir).file(authority::KEY_FILE).exists()
    }

    /// The authority of a data folder, made if need be; its certificates are good for `certificates_for`.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn open(data_dir: &Path, certificates_for: Duration) -> Result<Self, PkiError> {
        let folder = Folder::within(data_dir);
        let authority = Some(authority::open(&folder)?);
        let seen = Mutex::default();
        Ok(Self { folder, authority, certificates_for, certifies_stages: true, seen })
    }

    /// The same, where `certifies_stages` says whether stages of nodes get certificates. Releases before did not give them.
    #[must_use]
    pub fn with_stages(self, certifies_stages: bool) -> Self {
        Self { certifies_stages, ..self }
    }

    /// Whether stages of nodes get certificates.
    pub fn certifies_stages(&self) -> bool {
        self.certifies_stages
    }

    /// The books of a data folder, where certificates come from a foreign authority.
    pub fn of_foreign(data_dir: &Path) -> Self {
        let (folder, seen) = (Folder::within(data_dir), Mutex::default());
        let certificates_for = Duration::ZERO;
        Self { folder, authority: None, certificates_for, certifies_stages: false, seen }
    }

    /// The folder of the cluster's files.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The authority, if it is this cluster's own.
    pub fn authority(&self) -> Option<&Authority> {
        self.authority.as_ref()
    }

    /// How long its certificates are good.
    pub fn certificates_for(&self) -> Duration {
        self.certificates_for
    }

    /// A token that lets `uses` machines in within `ttl`.
    ///
    /// # Errors
    /// There are too many, or its files cannot be written.
    pub fn create_token(&self, ttl: Duration, uses: u32) -> Result<Token, Refusal> {
        let authority = self.authority.as_ref().ok_or(Refusal::Foreign)?;
        Ok(tokens::create(&self.folder, authority.id(), unix_now(), ttl, uses)?)
    }

    /// Issues a certificate to a node that has proved that it holds `key`. The node must have joined before, or
    /// present a token.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn enrol(
        &self,
        key: &PublicKey,
        wish: &str,
        token: Option<(&str, &[u8])>,
    ) -> Result<Issued, Refusal> {
        let authority = self.authority.as_ref().ok_or(Refusal::Foreign)?;
        check_name(wish)?;
        let (now, id) = (unix_now(), key.id());
        let validity = Validity::from_now(now, self.certificates_for);
        if Roster::read(&self.folder, now)?.by_key(&id).is_none() {
            let (token, secret) = token.ok_or(Refusal::Stranger)?;
            tokens::check(&self.folder, now, token, secret)??;
        }
        let lock = self.folder.lock()?;
        let mut roster = Roster::read(&self.folder, now)?;
        let name = match roster.by_key(&id) {
            Some(node) if node.revoked.is_some() => return Err(Refusal::Revoked),
            Some(node) => {
                node.expires = validity.not_after;
                node.name.clone()
            }
            None => {
                let (token, secret) = token.ok_or(Refusal::Stranger)?;
                tokens::redeem(&self.folder, &lock, now, token, secret)??;
                let node = Node {
                    name: wish.to_owned(),
                    key: id.to_string(),
                    joined: now,
                    expires: validity.not_after,
                    token: token.to_owned(),
                    address: String::new(),
                    stages: BTreeMap::new(),
                    revoked: None,
                };
                let name = roster.add(node, now)?.name.clone();
                tracing::info!(name, key = id.short(), token, "a node joined the cluster");
                name
            }
        };
        roster.write(&self.folder, &lock)?;
        let certificate = authority.issue(key, Role::Worker, &name, validity)?;
        let renew_in = self.certificates_for / 2;
        Ok(Issued { certificate, authority: authority.certificate().clone(), name, renew_in })
    }

    /// Issues a certificate to a stage that has proved that it holds `key`: on the word of its node, for hours.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn enrol_stage(&self, key: &PublicKey, voucher: &[u8]) -> Result<Issued, Refusal> {
        let authority = self.authority.as_ref().ok_or(Refusal::Foreign)?;
        if !self.certifies_stages {
            // As a release before says it, which does not know vouchers.
            return Err(Refusal::Stranger);
        }
        let now = unix_now();
        let Vouched { node, stage } = voucher::check(voucher, &key.id(), now)?;
        let mut roster = Roster::read(&self.folder, now)?;
        let (name, left) = match roster.by_key(&node) {
            None => return Err(Refusal::Stranger),
            Some(node) if node.revoked.is_some() => return Err(Refusal::Revoked),
            Some(node) => (node.stage_name(stage), node.expires.saturating_sub(now)),
        };
        if left == 0 {
            return Err(Refusal::NodeAway);
        }
        // Not longer than the node's: a revocation is forgotten when the node's certificate has ended.
        let good_for = STAGE_CERTIFICATES_FOR.min(Duration::from_secs(left));
        let validity = Validity::from_now(now, good_for);
        let certificate = authority.issue_to_stage(key, &name, &node, validity)?;
        let authority = authority.certificate().clone();
        Ok(Issued { certificate, authority, name, renew_in: good_for / 2 })
    }

    /// Remembers where a node can be dialled, for `brigade nodes`. A node of a foreign authority is entered in the
    /// books, so that it can be revoked.
    ///
    /// # Errors
    /// The files cannot be read or written.
    pub fn seen(&self, party: &Party, address: &str) -> Result<(), TlsError> {
        let address: String = address.chars().take(MAX_ADDRESS_CHARS).collect();
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let stage = party.node.and_then(|node| Some((node, stage_number(&party.name)?)));
        let who: Seen = match stage {
            Some((node, stage)) => (node, Some(stage)),
            None => (party.key, None),
        };
        if seen.get(&who).is_some_and(|last| *last == address) {
            return Ok(());
        }
        let (now, lock) = (unix_now(), self.folder.lock()?);
        let mut roster = Roster::read(&self.folder, now)?;
        match (roster.by_key(&who.0), who.1) {
            (Some(node), None) => node.address.clone_from(&address),
            (Some(node), Some(stage)) => drop(node.stages.insert(stage, address.clone())),
            // Nobody vouches for it any more.
            (None, Some(_)) => return Ok(()),
            (None, None) => {
                roster.add(
                    Node {
                        name: party.name.clone(),
                        key: party.key.to_string(),
                        joined: now,
                        expires: now + FOREIGN_FOR_S,
                        token: String::new(),
                        address: address.clone(),
                        stages: BTreeMap::new(),
                        revoked: None,
                    },
                    now,
                )?;
            }
        }
        roster.write(&self.folder, &lock)?;
        seen.insert(who, address);
        Ok(())
    }

    /// Credentials for a worker that this process starts; `None`: another authority issues them.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn child(&self, index: usize) -> Option<Result<Bundle, TlsError>> {
        let authority = self.authority.as_ref()?;
        Some(Bundle::for_child(authority, &format!("local-{index}")))
    }

    /// All nodes of the roster, revoked ones included.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn nodes(folder: &Folder) -> Result<Vec<Node>, TlsError> {
        Ok(Roster::read(folder, unix_now())?.nodes().to_vec())
    }

    /// The address of the node that is called `which`, or whose key begins like that.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn address_of(folder: &Folder, which: &str) -> Result<Option<String>, TlsError> {
        Ok(Roster::read(folder, unix_now())?.address_of(which))
    }

    /// The tokens that can still be used.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn tokens(folder: &Folder) -> Result<Vec<MadeToken>, TlsError> {
        tokens::usable(folder, unix_now())
    }

    /// Revokes the nodes with this name, address or beginning of a key; returns them.
    ///
    /// # Errors
    /// There is no such node, too many nodes are revoked, or the files cannot be read or written.
    pub fn revoke(folder: &Folder, which: &str) -> Result<Vec<Node>, PkiError> {
        let (now, lock) = (unix_now(), folder.lock()?);
        let mut roster = Roster::read(folder, now)?;
        let revoked = roster.revoke(which, now);
        if let Some(node) = roster.node_of_stage(which).filter(|_| revoked.is_empty()) {
            let (which, node) = (which.to_owned(), node.name.clone());
            return Err(PkiError::OneStage { which, node });
        }
        if revoked.is_empty() {
            return Err(PkiError::NoSuchNode { which: which.to_owned() });
        }
        if roster.revoked_keys(now).len() > MAX_REVOKED {
            return Err(PkiError::TooManyRevoked { most: MAX_REVOKED });
        }
        for node in revoked.iter().filter(|node| !node.token.is_empty()) {
            tokens::withdraw(folder, &lock, now, &node.token)?;
        }
        roster.write(folder, &lock)?;
        Ok(revoked)
    }
}
