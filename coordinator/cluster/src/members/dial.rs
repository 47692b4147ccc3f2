//! One attempt to reach a worker, with a time limit.
//!
//! A worker of our own is started first. Then it is dialled, shakes hands, and is checked against what the
//! model needs.

use std::sync::Arc;
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::capability::Requirements;
use brigade_proto::net::Network;
use tokio::time::timeout;

use crate::local::{LocalOptions, LocalWorker};
use crate::members::conn::{Conn, WorkerError};
use crate::members::facts;
use crate::members::member::Origin;
use crate::pki::Pki;

/// How long reaching a worker and shaking hands may take together.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// The worker to reach, the identity to use, and the features that the worker must have.
#[derive(Clone, Debug)]
pub struct Dial {
    /// Where the worker comes from.
    pub origin: Origin,
    /// The worker's name when it was last there.
    pub called: Option<String>,
    /// How children are started.
    pub local: Option<LocalOptions>,
    /// The id of this coordinator.
    pub coordinator_id: String,
    /// How this process speaks with workers.
    pub network: Network,
    /// The authority that issues children's credentials; `None`: they need none.
    pub pki: Option<Arc<Pki>>,
    /// Capabilities that it must have; `None`: any will do.
    pub needs: Option<Requirements>,
}

/// The result of a successful attempt.
#[derive(Debug)]
pub struct Connected {
    /// The worker's process, if it is our child.
    pub child: Option<LocalWorker>,
    /// The connection to the worker.
    pub conn: Conn,
}

/// Starts or dials a worker, shakes hands, and checks that it can serve.
///
/// # Errors
/// [`WorkerError::Start`]: a child cannot be started at all. [`WorkerError::Refused`]: it cannot run the model.
/// [`WorkerError::Busy`]: it drains. [`WorkerError::Lost`]: nothing answers in time.
pub async fn connect(dial: Dial) -> Result<Connected, WorkerError> {
    let child = match (&dial.origin, &dial.local) {
        (Origin::Local(index), Some(options)) => {
            let failed = |reason: String| WorkerError::Start { reason };
            let bundle = dial.pki.as_ref().and_then(|pki| pki.child(*index)).transpose();
            let bundle = bundle.map_err(|e| failed(e.to_string()))?;
            let started = LocalWorker::start(options, *index, bundle.as_ref()).await;
            Some(started.map_err(|e| failed(e.to_string()))?)
        }
        _ => None,
    };
    let address = match (&dial.origin, &child) {
        (_, Some(child)) => child.address().clone(),
        (Origin::Remote(address) | Origin::Joined(address), None) => address.clone(),
        (Origin::Local(index), None) => {
            let reason = format!("local worker {index} has no start options");
            return Err(WorkerError::Start { reason });
        }
    };
    let is_child = child.is_some();
    let called = dial.called.clone().filter(|_| !is_child);
    let name = called.unwrap_or_else(|| name_at(&dial.origin, &address));
    let handshake = async {
        let opened = Conn::open(&name, is_child, &address, &dial.coordinator_id, &dial.network);
        let conn = opened.await?;
        if let Some(needs) = &dial.needs {
            conn.check(needs)?;
        }
        let refused = |reason| WorkerError::Refused { worker: name.clone(), reason };
        facts::check(conn.capabilities()).map_err(refused)?;
        conn.check_takes_work().await?;
        Ok(conn)
    };
    let conn = timeout(CONNECT_WITHIN, handshake).await.unwrap_or_else(|_| {
        let reason = format!("no handshake within {} s", CONNECT_WITHIN.as_secs());
        Err(WorkerError::Lost { worker: name.clone(), reason })
    })?;
    Ok(Connected { child, conn })
}

fn name_at(origin: &Origin, address: &Address) -> String {
    match origin {
        Origin::Local(_) => format!("{} ({address})", origin.name()),
        Origin::Remote(_) | Origin::Joined(_) => origin.name(),
    }
}
