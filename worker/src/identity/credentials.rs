//! The source of a worker's credentials: a token, an earlier join, its node's word, files of an external authority, or the
//! coordinator that started it. Without credentials the worker speaks plain TCP, on this machine only.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use brigade_proto::net::Network;
use brigade_proto::tls::{Bundle, Credentials, External, Role, TlsError, Token};

use super::membership::{Membership, MembershipError, Wish};
use super::stage::StageMembership;
use super::word::Words;
use crate::config::{Config, Secured};

/// A worker's network, and what keeps its credentials good.
pub struct Secure {
    /// How it speaks with others.
    pub network: Network,
    upkeep: Upkeep,
}

enum Upkeep {
    None,
    Renew(Box<Membership>),
    RenewStage(Box<StageMembership>),
    Reload(External, Arc<Credentials>),
}

impl Secure {
    /// Obtains the credentials that the settings ask for. A worker that joins waits here for its coordinator. A stage of a node
    /// has its `words`.
    ///
    /// # Errors
    /// [`MembershipError`].
    pub async fn of(config: &Config, words: Option<Words>) -> Result<Self, MembershipError> {
        let insecure = config.insecure_network;
        let (credentials, upkeep) = match &config.secured {
            Secured::No => {
                return Ok(Self { network: Network::plain(insecure), upkeep: Upkeep::None });
            }
            Secured::Parent => (Arc::new(of_parent().await?), Upkeep::None),
            Secured::External(files) => {
                let credentials = Arc::new(files.load(Role::Worker)?);
                (credentials.clone(), Upkeep::Reload(files.clone(), credentials))
            }
            Secured::OfNode => {
                let coordinator = config.join.clone().ok_or(MembershipError::NoNode)?;
                let words = words.ok_or(MembershipError::NoNode)?;
                let membership = StageMembership::take(coordinator, words).await?;
                (membership.credentials().clone(), Upkeep::RenewStage(Box::new(membership)))
            }
            Secured::Member { data_dir, token, name } => {
                let membership = join(config, data_dir, token.clone(), name, false).await?;
                (membership.credentials().clone(), Upkeep::Renew(Box::new(membership)))
            }
        };
        tracing::info!(party = %credentials.party(), "connections are over TLS");
        // A worker with a certificate speaks plain TCP on this machine only, even with `--insecure-network`.
        Ok(Self { network: Network::with_credentials(credentials, false), upkeep })
    }

    /// Keeps the credentials good for ever.
    pub async fn keep(self) -> Infallible {
        match self.upkeep {
            Upkeep::None => std::future::pending().await,
            Upkeep::Renew(membership) => membership.keep_renewing().await,
            Upkeep::RenewStage(membership) => membership.keep_renewing().await,
            Upkeep::Reload(files, credentials) => files.keep_loading(credentials).await,
        }
    }
}

/// The membership of a node with these settings, which may wait for its coordinator; `None` where it is to be none.
///
/// # Errors
/// [`MembershipError`].
pub async fn of_node(config: &Config) -> Result<Option<Membership>, MembershipError> {
    match &config.secured {
        Secured::Member { data_dir, token, name } => {
            join(config, data_dir, token.clone(), name, true).await.map(Some)
        }
        Secured::No | Secured::Parent | Secured::External(_) | Secured::OfNode => Ok(None),
    }
}

async fn join(
    config: &Config,
    data_dir: &Path,
    token: Option<Token>,
    name: &str,
    has_stages: bool,
) -> Result<Membership, MembershipError> {
    let no_token = || MembershipError::NoToken { folder: data_dir.to_owned() };
    let wish = Wish {
        data_dir: data_dir.to_owned(),
        coordinator: config.join.clone().ok_or_else(no_token)?,
        token,
        name: name.to_owned(),
        has_stages,
    };
    Membership::take(wish).await
}

/// Reads the credentials that the coordinator which started this process writes to its standard input.
async fn of_parent() -> Result<Credentials, TlsError> {
    let read =
        tokio::task::spawn_blocking(|| Bundle::credentials_from(&mut std::io::stdin().lock()));
    read.await.unwrap_or_else(|error| {
        let source = std::io::Error::other(error);
        Err(TlsError::File { path: "standard input".into(), source })
    })
}
