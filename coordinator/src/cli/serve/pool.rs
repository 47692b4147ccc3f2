//! The workers that join a server of several models.

use std::sync::{Arc, OnceLock};

use anyhow::Result;
use brigade_cluster::{JoinHint, Pool, Seat};
use brigade_proto::address::Address;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ServeArgs;
use crate::cli::options::security::Security;
use crate::cli::running::session::Joins;

/// The pool of a server, and as who its lines speak with the workers.
#[derive(Debug)]
pub struct Shared {
    /// The workers that have joined.
    pub pool: Pool,
    security: Security,
    how_to_join: JoinHint,
    /// Bytes that each configured model needs at least that is lent workers.
    needs: OnceLock<Arc<[u64]>>,
    _stop: DropGuard,
}

impl Shared {
    /// Opens the address where workers join; those at `named` belong to lines.
    ///
    /// # Errors
    /// The address or the authority is no good.
    pub async fn open(
        args: &ServeArgs,
        control: &Address,
        named: Vec<Address>,
    ) -> Result<Arc<Self>> {
        let mut security =
            Security::of_server(&args.cluster, &args.line, Some(control), false).await?;
        let stop = CancellationToken::new();
        let (network, pki) = (security.network.clone(), security.pki.clone());
        let pool = Pool::open(control, network, pki, named, stop.clone()).await?;
        security.joins_at(pool.control())?;
        security.keep();
        let how_to_join = security.how_to_join(pool.control(), &args.line.data_dir);
        let (needs, _stop) = (OnceLock::new(), stop.drop_guard());
        Ok(Arc::new(Self { pool, security, how_to_join, needs, _stop }))
    }

    /// Says once what the configured models need that are lent workers.
    pub fn tell_needs(&self, needs: Vec<u64>) {
        self.needs.get_or_init(|| needs.into());
    }

    /// What these need: room for them is left by models that come while the server runs.
    pub fn needs(&self) -> Arc<[u64]> {
        self.needs.get().cloned().unwrap_or_default()
    }

    /// The security between a line and its workers.
    pub fn security(&self) -> Security {
        self.security.again()
    }

    /// How a line with this place gets so many workers or more.
    pub fn joins(&self, seat: Arc<Seat>, expected: usize) -> Joins {
        Joins::Lent { seat, expected, how_to_join: self.how_to_join.clone() }
    }
}
