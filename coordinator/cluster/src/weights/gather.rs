//! Has a worker ask other workers for tensors with known hashes: tensors that one machine has are not fetched from
//! the source again.

use std::collections::HashSet;

use brigade_gguf::TensorInfo;
use brigade_hub::remote::Remote;
use brigade_proto::control::{Blob, Feature, GatherRequest, Holder, fetch_event};
use brigade_proto::limits::{MAX_GATHERED, MAX_HOLDERS};

use crate::members::conn::{Conn, WorkerError};
use crate::members::facts;
use crate::progress::{Part, Phase, Progress};
use crate::weights::fetch::Order;

/// The addresses of those of `conns` that may have tensors which `conn` lacks.
pub fn holders<'c>(conn: &Conn, conns: impl Iterator<Item = &'c Conn>) -> Vec<Holder> {
    if !facts::knows(conn.capabilities(), Feature::Gather) {
        return Vec::new();
    }
    let others = conns.filter(|other| {
        other.address() != conn.address()
            && facts::knows(other.capabilities(), Feature::Gather)
            && facts::can_dial(conn.capabilities(), other.address())
    });
    let holder = |other: &Conn| Holder {
        address: other.address().to_string(),
        key: other.reach().key_bytes(),
    };
    others.map(holder).take(MAX_HOLDERS).collect()
}

/// Has the worker ask `holders` for those of `tensors` whose hashes are remembered; returns what is left to be
/// fetched. Nothing coming is no failure. The next call notices a worker that is lost.
pub async fn gather<'m>(
    remote: &Remote,
    conn: &Conn,
    order: &Order,
    tensors: Vec<&'m TensorInfo>,
    holders: &[Holder],
    progress: &Progress,
) -> Vec<&'m TensorInfo> {
    let hash = |tensor: &TensorInfo| blake3::Hash::from_hex(remote.hash(&tensor.name)?).ok();
    let known: Vec<(&TensorInfo, blake3::Hash)> =
        tensors.iter().filter_map(|tensor| Some((*tensor, hash(tensor)?))).collect();
    if known.is_empty() || holders.is_empty() {
        return tensors;
    }
    let part = progress.part(Phase::Sending, known.iter().map(|(tensor, _)| tensor.nbytes).sum());
    let (mut came, mut done) = (HashSet::new(), 0);
    for batch in known.chunks(MAX_GATHERED) {
        let blob = |(tensor, hash): &(&TensorInfo, blake3::Hash)| Blob {
            blake3: hash.as_bytes().to_vec().into(),
            nbytes: tensor.nbytes,
        };
        let request = GatherRequest {
            epoch: order.epoch,
            coordinator_id: order.coordinator_id.clone(),
            blobs: batch.iter().map(blob).collect(),
            holders: holders.to_vec(),
        };
        let mut numbers = Vec::new();
        if let Err(error) = call(conn, request, &part, done, &mut numbers).await {
            tracing::info!(worker = conn.name(), %error, "a worker does not fetch weights from other workers");
        }
        let tensors = numbers.iter().filter_map(|number| batch.get(*number));
        for (tensor, _) in tensors {
            if came.insert(tensor.name.as_str()) {
                done += tensor.nbytes;
            }
        }
        part.at(done);
    }
    if done > 0 {
        tracing::info!(
            worker = conn.name(),
            gathered_bytes = done,
            "weights came from other workers"
        );
    }
    tensors.into_iter().filter(|tensor| !came.contains(tensor.name.as_str())).collect()
}

/// One call; `came`: numbers of the blobs that came, also of a call that breaks.
async fn call(
    conn: &Conn,
    request: GatherRequest,
    part: &Part,
    before: u64,
    came: &mut Vec<usize>,
) -> Result<(), WorkerError> {
    let mut control = conn.control();
    let call = async {
        let stream = control.gather_tensors(request).await.map_err(|status| conn.error(&status))?;
        let mut stream = stream.into_inner();
        while let Some(event) = stream.message().await.map_err(|status| conn.error(&status))? {
            match event.event {
                Some(fetch_event::Event::Progress(progress)) => {
                    part.at(before + progress.done_bytes);
                }
                Some(fetch_event::Event::Fetched(fetched)) => came.push(fetched.span as usize),
                None => {}
            }
        }
        Ok(())
    };
    conn.while_alive(call).await
}
