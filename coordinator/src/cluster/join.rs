//! `serve --control ADDR`: the address where workers say where they can be dialled.
//!
//! What a worker says there is only a hint. The coordinator dials the address, and the handshake decides. An
//! address that joins several times is one worker.

use brigade_proto::address::Address;
use brigade_proto::capability::check_version;
use brigade_proto::control::cluster_server::{Cluster, ClusterServer};
use brigade_proto::control::{JoinReply, JoinRequest};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::MAX_CONTROL_BYTES;
use brigade_proto::net::{Listener, NetError, server};
use brigade_proto::{SOFTWARE, WIRE_VERSION};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Joins that wait for the supervisor, which looks at them between its steps; a worker that is
/// turned away asks again.
const JOIN_QUEUE: usize = 256;

struct JoinService {
    coordinator_id: String,
    insecure_network: bool,
    joined: mpsc::Sender<Address>,
}

#[tonic::async_trait]
impl Cluster for JoinService {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinReply>, Status> {
        let request = request.into_inner();
        check_version(request.wire_version, &request.software)
            .map_err(|e| Failure::refusal(FailureKind::Version, e.to_string()))?;
        let bad = |e: &dyn std::error::Error| {
            Failure::refusal(FailureKind::BadMessage, format!("advertised address: {e}"))
        };
        let address: Address = request.address.parse().map_err(|e| bad(&e))?;
        address.resolve(self.insecure_network).await.map_err(|e| bad(&e))?;
        self.joined.try_send(address).map_err(|_| {
            Failure::refusal(FailureKind::Busy, "too many workers join at once: try again")
        })?;
        Ok(Response::new(JoinReply {
            wire_version: WIRE_VERSION,
            software: SOFTWARE.to_string(),
            coordinator_id: self.coordinator_id.clone(),
        }))
    }
}

/// Binds the control address and serves joins until `stop`; returns where it listens and the
/// addresses that join.
///
/// # Errors
/// [`NetError`] where the address cannot or may not be bound.
pub async fn listen(
    address: &Address,
    coordinator_id: &str,
    insecure_network: bool,
    stop: CancellationToken,
) -> Result<(Address, mpsc::Receiver<Address>), NetError> {
    let listener = Listener::bind(address, insecure_network).await?;
    let bound = listener.address().clone();
    let (joined, joins) = mpsc::channel(JOIN_QUEUE);
    let coordinator_id = coordinator_id.to_string();
    let service = ClusterServer::new(JoinService { coordinator_id, insecure_network, joined })
        .max_decoding_message_size(MAX_CONTROL_BYTES);
    tokio::spawn(async move {
        let router = server().add_service(service);
        if let Err(error) = listener.serve(router, stop.cancelled_owned()).await {
            tracing::error!(%error, "workers can no longer join");
        }
    });
    Ok((bound, joins))
}
