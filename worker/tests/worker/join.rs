//! Joining: a worker says where it is, and says it again to a coordinator that was restarted.

use crate::common::*;
use brigade_proto::address::Address;
use brigade_proto::control::cluster_server::{Cluster, ClusterServer};
use brigade_proto::control::{EnrolReply, EnrolRequest, JoinReply, JoinRequest};
use brigade_proto::net::{Listener, server};
use brigade_proto::{OLDEST_WIRE_VERSION, SOFTWARE, WIRE_VERSION};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

struct Joins(mpsc::UnboundedSender<JoinRequest>);

#[tonic::async_trait]
impl Cluster for Joins {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinReply>, Status> {
        self.0.send(request.into_inner()).unwrap();
        let coordinator_id = "c".to_owned();
        let software = SOFTWARE.to_owned();
        Ok(Response::new(JoinReply {
            wire_version: OLDEST_WIRE_VERSION,
            newest_wire_version: WIRE_VERSION,
            software,
            coordinator_id,
        }))
    }

    async fn enrol(&self, _: Request<EnrolRequest>) -> Result<Response<EnrolReply>, Status> {
        Err(Status::unimplemented("nobody enrols here"))
    }
}

/// A coordinator's control address, until the sender is dropped.
async fn coordinator(
    address: &Address,
) -> (Address, mpsc::UnboundedReceiver<JoinRequest>, oneshot::Sender<()>) {
    let listener = Listener::bind(address, false).await.unwrap();
    let bound = listener.address().clone();
    let (told, joins) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let router = server().add_service(ClusterServer::new(Joins(told)));
    tokio::spawn(async move {
        listener.serve(router, async { drop(stopped.await) }).await.unwrap();
    });
    (bound, joins, stop)
}

#[tokio::test]
async fn a_worker_joins_and_joins_again_after_a_restart() {
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let (address, mut joins, stop) = coordinator(&any).await;
    let worker = TestWorker::with(&scratch(), |raw| raw.join = Some(address.to_string()));
    let joined = soon(joins.recv()).await.unwrap();
    assert_eq!(joined.address, worker.address.to_string());
    assert_eq!(
        (joined.wire_version, joined.newest_wire_version),
        (OLDEST_WIRE_VERSION, WIRE_VERSION)
    );
    assert_eq!(joined.capabilities.unwrap().architectures, ["fake"]);
    drop((stop, joins));
    let (_, mut joins, _stop) = soon(async {
        loop {
            // The port is free once the first coordinator has let go of it.
            if Listener::bind(&address, false).await.is_ok() {
                return coordinator(&address).await;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(soon(joins.recv()).await.unwrap().address, worker.address.to_string());
}

#[tokio::test]
async fn the_advertised_address_is_the_one_told() {
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let (address, mut joins, _stop) = coordinator(&any).await;
    let _worker = TestWorker::with(&scratch(), |raw| {
        raw.join = Some(address.to_string());
        raw.advertise = Some("node-7.example:4000".into());
    });
    assert_eq!(soon(joins.recv()).await.unwrap().address, "node-7.example:4000");
}
