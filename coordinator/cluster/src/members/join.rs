//! `serve --control ADDR`: the address where workers say where they can be dialled.
//!
//! A worker's statements there are only hints. The coordinator dials the address, and the handshake decides. An
//! address that joins several times is one worker. A newcomer with a token is given a certificate first.

use brigade_proto::task;
use std::sync::Arc;

use brigade_proto::address::Address;
use brigade_proto::capability::check_version;
use brigade_proto::control::cluster_server::{Cluster, ClusterServer};
use brigade_proto::control::{EnrolReply, EnrolRequest, JoinReply, JoinRequest};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::MAX_CONTROL_BYTES;
use brigade_proto::net::{Caller, NetError, Network, Plain, server};
use brigade_proto::tls::{TlsError, Who};
use brigade_proto::{OLDEST_WIRE_VERSION, SOFTWARE, WIRE_VERSION};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::pki::{Issued, Pki, Refusal};

/// Joins that wait for the supervisor, which looks at them between its steps; a worker that is
/// turned away asks again.
const JOIN_QUEUE: usize = 256;

/// The coordinator that workers join.
#[derive(Clone, Debug)]
pub struct Host {
    /// The id of this coordinator.
    pub coordinator_id: String,
    /// How it speaks with workers.
    pub network: Network,
    /// The authority that issues certificates; `None`: workers need none.
    pub pki: Option<Arc<Pki>>,
}

struct JoinService {
    host: Host,
    joined: mpsc::Sender<Address>,
}

#[tonic::async_trait]
impl Cluster for JoinService {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinReply>, Status> {
        let who = who_of(&request);
        let request = request.into_inner();
        check_their_version(request.wire_version, request.newest_wire_version, &request.software)?;
        let bad = |e: &dyn std::error::Error| {
            Failure::refusal(FailureKind::BadMessage, format!("advertised address: {e}"))
        };
        let address: Address = request.address.parse().map_err(|e| bad(&e))?;
        let is_tls = who != Who::Anybody;
        self.host.network.check(&address, is_tls).await.map_err(|e| bad(&e))?;
        self.note(who, &address).await;
        self.joined.try_send(address).map_err(|_| {
            Failure::refusal(FailureKind::Busy, "too many workers join at once: try again")
        })?;
        Ok(Response::new(JoinReply {
            wire_version: OLDEST_WIRE_VERSION,
            newest_wire_version: WIRE_VERSION,
            software: SOFTWARE.to_string(),
            coordinator_id: self.host.coordinator_id.clone(),
        }))
    }

    async fn enrol(&self, request: Request<EnrolRequest>) -> Result<Response<EnrolReply>, Status> {
        let who = who_of(&request);
        let request = request.into_inner();
        check_their_version(request.wire_version, request.newest_wire_version, &request.software)?;
        let (Who::Stranger(key), Some(pki)) = (who, self.host.pki.clone()) else {
            let why = "certificates are given only over TLS, and only to a key without one";
            return Err(Failure::refusal(FailureKind::Forbidden, why).into());
        };
        let certifies_stages = pki.certifies_stages();
        let issued = tokio::task::spawn_blocking(move || {
            if !request.voucher.is_empty() {
                return pki.enrol_stage(&key, &request.voucher);
            }
            let token = Some((request.token_id.as_str(), &request.token_secret[..]));
            let token = token.filter(|(id, _)| !id.is_empty());
            pki.enrol(&key, &request.name, token)
        });
        let issued = issued.await.map_err(|error| {
            Failure::refusal(FailureKind::Io, format!("enrolling failed: {error}"))
        })?;
        let Issued { certificate, authority, name, renew_in } = issued.map_err(|refusal| {
            tracing::warn!(%refusal, "a node may not join");
            let kind = match &refusal {
                Refusal::NodeAway => FailureKind::Busy,
                // The disk is full, perhaps: not the node's fault.
                Refusal::Tls(TlsError::File { .. }) => FailureKind::Io,
                _ => FailureKind::Forbidden,
            };
            Failure::refusal(kind, refusal.to_string())
        })?;
        Ok(Response::new(EnrolReply {
            certificate: certificate.to_vec().into(),
            authority: authority.to_vec().into(),
            renew_in_s: u32::try_from(renew_in.as_secs()).unwrap_or(u32::MAX),
            name,
            certifies_stages,
        }))
    }
}

impl JoinService {
    /// Enters in the books where a node is.
    async fn note(&self, who: Who, address: &Address) {
        let (Who::Known(party), Some(pki)) = (who, self.host.pki.clone()) else { return };
        let address = address.to_string();
        let noted = tokio::task::spawn_blocking(move || pki.seen(&party, &address)).await;
        if let Ok(Err(error)) = noted {
            tracing::warn!(%error, "the list of nodes is not up to date");
        }
    }
}

fn who_of<T>(request: &Request<T>) -> Who {
    request.extensions().get::<Caller>().map(Caller::who).unwrap_or_default()
}

fn check_their_version(oldest: u32, newest: u32, software: &str) -> Result<u32, Failure> {
    check_version(oldest, newest, software)
        .map_err(|e| Failure::refusal(FailureKind::Version, e.to_string()))
}

/// Binds the control address and serves joins until `stop`; returns where it listens and the
/// addresses that join, to which others may add.
///
/// # Errors
/// [`NetError`] where the address cannot or may not be bound.
pub async fn listen(
    address: &Address,
    host: Host,
    stop: CancellationToken,
) -> Result<(Address, mpsc::Sender<Address>, mpsc::Receiver<Address>), NetError> {
    let listener = host.network.bind(address, Plain::AsEver).await?;
    let bound = listener.address().clone();
    let (joined, joins) = mpsc::channel(JOIN_QUEUE);
    let joins_too = joined.clone();
    let service = ClusterServer::new(JoinService { host, joined })
        .max_decoding_message_size(MAX_CONTROL_BYTES);
    task::spawn(async move {
        let router = server().add_service(service);
        if let Err(error) = listener.serve(router, stop.cancelled_owned()).await {
            tracing::error!(%error, "workers can no longer join");
        }
    });
    Ok((bound, joins_too, joins))
}
