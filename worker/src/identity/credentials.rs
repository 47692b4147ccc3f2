//! The source of a worker's credentials: a token, an earlier join, files of an external authority, or the coordinator
//! that started it. Without credentials the worker speaks plain TCP, on this machine only.

use std::convert::Infallible;
use std::sync::Arc;

use brigade_proto::net::Network;
use brigade_proto::tls::{Bundle, Credentials, External, Role, TlsError};

use super::membership::{Membership, MembershipError, Wish};
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
    Reload(External, Arc<Credentials>),
}

impl Secure {
    /// Obtains the credentials that the settings ask for. A worker that joins waits here for its coordinator.
    ///
    /// # Errors
    /// [`MembershipError`].
    pub async fn of(config: &Config) -> Result<Self, MembershipError> {
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
            Secured::Member { data_dir, token, name } => {
                let wish = Wish {
                    data_dir: data_dir.clone(),
                    coordinator: config
                        .join
                        .clone()
                        .ok_or_else(|| MembershipError::NoToken { folder: data_dir.clone() })?,
                    token: token.clone(),
                    name: name.clone(),
                };
                let membership = Membership::take(wish).await?;
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
            Upkeep::Reload(files, credentials) => files.keep_loading(credentials).await,
        }
    }
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
