//! `--join`: tells a coordinator where this worker can be dialled. It does so again whenever no coordinator
//! has been heard from for a while, so that one that was restarted finds the worker.

use std::sync::Arc;
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::capability::check_version;
use brigade_proto::control::cluster_client::ClusterClient;
use brigade_proto::control::{JoinReply, JoinRequest};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::net::speaks_http;
use brigade_proto::tls::Role;
use brigade_proto::tls::verify::Expected;
use brigade_proto::{OLDEST_WIRE_VERSION, SOFTWARE, WIRE_VERSION};
use tokio::time::{sleep, timeout};

use crate::state::Worker;

/// First and last wait between attempts that fail; it doubles in between.
const BACKOFF_MS: std::ops::RangeInclusive<u64> = 250..=10_000;
/// Wait after a join that was taken.
const JOIN_EVERY: Duration = Duration::from_secs(2);
/// Wait between looks at a held worker: one whose lease is over soon asks for the next coordinator.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How [`Failure::from_status`] begins for a call that a server does not have.
const UNIMPLEMENTED: &str = "Operation is not implemented";
/// Time for one attempt.
const JOIN_WITHIN: Duration = Duration::from_secs(5);

/// Repeats the join for ever. A coordinator that refuses is asked again, more and more rarely: it may be replaced by
/// one that does not.
pub async fn keep_joining(
    worker: Arc<Worker>,
    coordinator: Address,
    advertised: Address,
) -> std::convert::Infallible {
    let mut wait_ms = *BACKOFF_MS.start();
    let mut last_reason = String::new();
    loop {
        if worker.is_held() {
            sleep(LOOK_EVERY).await;
            continue;
        }
        match join(&worker, &coordinator, &advertised).await {
            Ok(reply) => {
                if !last_reason.is_empty() || wait_ms == *BACKOFF_MS.start() {
                    tracing::info!(%coordinator, id = reply.coordinator_id, "joined");
                }
                last_reason.clear();
                wait_ms = *BACKOFF_MS.start() + 1;
                sleep(JOIN_EVERY).await;
            }
            Err(failure) => {
                let failure = explained(failure, &coordinator).await;
                if failure.reason != last_reason {
                    tracing::warn!(%coordinator, %failure, "cannot join, trying again");
                    last_reason = failure.reason;
                }
                sleep(Duration::from_millis(wait_ms)).await;
                wait_ms = (wait_ms * 2).min(*BACKOFF_MS.end());
            }
        }
    }
}

/// The failure, or that the address is another port than that where workers join.
async fn explained(failure: Failure, coordinator: &Address) -> Failure {
    let wrong = match failure.kind() {
        FailureKind::PeerLost if speaks_http(coordinator).await => {
            format!("{coordinator} speaks HTTP: is it serve's --listen instead of its --control?")
        }
        // A gRPC server that does not know the call.
        FailureKind::Version if failure.reason.starts_with(UNIMPLEMENTED) => format!(
            "workers cannot join at {coordinator}: is it a worker's --listen instead of serve's --control?"
        ),
        _ => return failure,
    };
    Failure::refusal(FailureKind::Version, wrong)
}

async fn join(
    worker: &Worker,
    coordinator: &Address,
    advertised: &Address,
) -> Result<JoinReply, Failure> {
    let request = JoinRequest {
        wire_version: OLDEST_WIRE_VERSION,
        newest_wire_version: WIRE_VERSION,
        software: SOFTWARE.to_owned(),
        address: advertised.to_string(),
        capabilities: Some(worker.capabilities()),
    };
    let attempt = async {
        let network = worker.network();
        let expected =
            network.credentials().map(|_| Expected { role: Role::Coordinator, key: None });
        let channel = network
            .dial(coordinator, expected)
            .await
            .map_err(|e| Failure::refusal(FailureKind::PeerLost, e.to_string()))?;
        let reply = ClusterClient::new(channel).join(request).await;
        Ok::<_, Failure>(reply.map_err(|status| Failure::from_status(&status))?.into_inner())
    };
    let reply = timeout(JOIN_WITHIN, attempt).await.map_err(|_| {
        let why = format!("no answer within {} s", JOIN_WITHIN.as_secs());
        Failure::refusal(FailureKind::PeerLost, why)
    })??;
    check_version(reply.wire_version, reply.newest_wire_version, &reply.software)
        .map_err(|e| Failure::refusal(FailureKind::Version, e.to_string()))?;
    Ok(reply)
}
